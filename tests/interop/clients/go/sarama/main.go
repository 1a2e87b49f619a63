// The programs of the client matrix with sarama. clients/README.md has the contract.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/IBM/sarama"
)

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_5_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Producer.Return.Successes = true
	config.Net.MaxOpenRequests = 1
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	return config
}

func records(topic string, first, count int) (found []*sarama.ProducerMessage) {
	for i := first; i < first+count; i++ {
		found = append(found, &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(fmt.Sprintf("k%d", i)),
			Value:   sarama.StringEncoder(fmt.Sprintf("v%d", i)),
			Headers: []sarama.RecordHeader{{Key: []byte("n"), Value: fmt.Appendf(nil, "h%d", i)}},
		})
	}
	return found
}

func produce(brokers []string, topic, compression, first, count string) {
	config := settings()
	config.Producer.Compression = codecs[compression]
	producer, err := sarama.NewSyncProducer(brokers, config)
	check(err)
	check(producer.SendMessages(records(topic, number(first), number(count))))
	check(producer.Close())
}

type member struct{ topic string }

func (m member) Setup(session sarama.ConsumerGroupSession) error {
	held := session.Claims()[m.topic]
	slices.Sort(held)
	fmt.Println("assigned", strings.ReplaceAll(strings.Trim(fmt.Sprint(held), "[]"), " ", ","))
	return nil
}

func (m member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case r, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			fmt.Printf("record %d %d %s %s %s\n", r.Partition, r.Offset, r.Key, r.Value, r.Headers[0].Value)
			session.MarkMessage(r, "")
			if len(claim.Messages()) == 0 {
				session.Commit()
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func consume(brokers []string, topic, group, isolation string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := settings()
	if isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumerGroup(brokers, group, config)
	check(err)
	for ctx.Err() == nil {
		if err := consumer.Consume(ctx, []string{topic}, member{topic}); err != nil {
			log.Print(err) // its coordinator is gone; the next call looks for another
		}
	}
	check(consumer.Close())
}

func transact(brokers []string, topic, id string) {
	config := settings()
	config.Producer.Transaction.ID = id
	producer, err := sarama.NewSyncProducer(brokers, config)
	check(err)
	for i, end := range []func() error{producer.AbortTxn, producer.CommitTxn} {
		check(producer.BeginTxn())
		check(producer.SendMessages(records(topic, i*10, 10)))
		check(end())
	}
	check(producer.Close())
}

func create(brokers []string, topic, oldTopic string) {
	asked, err := sarama.NewClusterAdmin(brokers, settings())
	check(err)
	check(asked.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 3}, false))
	check(asked.DeleteTopic(oldTopic))
	check(asked.Close())
}

func describe(brokers []string, topic string) {
	asked, err := sarama.NewClusterAdmin(brokers, settings())
	check(err)
	described, err := asked.DescribeTopics([]string{topic})
	check(err)
	fmt.Println("partitions", len(described[0].Partitions))
	check(asked.Close())
}

func configure(brokers []string, topic, backoff string) {
	describe(brokers, topic)
	asked, err := sarama.NewClusterAdmin(brokers, settings())
	check(err)
	check(asked.CreatePartitions(topic, 6, nil, false))
	fmt.Println("broker", value(asked, sarama.BrokerResource, "1", "log.segment.bytes"))
	retention := "100000"
	check(asked.AlterConfig(sarama.TopicResource, topic, map[string]*string{"retention.ms": &retention}, false))
	set := func(kind sarama.ConfigResourceType, name, key, value string) {
		change := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
		entries := map[string]sarama.IncrementalAlterConfigsEntry{key: change}
		check(asked.IncrementalAlterConfig(kind, name, entries, false))
	}
	set(sarama.TopicResource, topic, "max.message.bytes", "200000")
	set(sarama.BrokerResource, "1", "log.cleaner.backoff.ms", backoff)
	kind := sarama.TopicResource
	fmt.Println("topic", value(asked, kind, topic, "retention.ms"), value(asked, kind, topic, "max.message.bytes"))
	check(asked.Close())
}

func value(asked sarama.ClusterAdmin, kind sarama.ConfigResourceType, name, key string) string {
	resource := &sarama.ConfigResource{Type: kind, Name: name}
	described, err := asked.DescribeConfigs([]*sarama.ConfigResource{resource}, sarama.DescribeConfigsOptions{})
	check(err)
	for _, entry := range described[0].Configs {
		if entry.Name == key {
			return entry.Value
		}
	}
	return "-"
}

func main() {
	brokers, a := strings.Split(os.Args[2], ","), os.Args[3:]
	switch os.Args[1] {
	case "produce":
		produce(brokers, a[0], a[1], a[2], a[3])
	case "consume":
		consume(brokers, a[0], a[1], a[2])
	case "transact":
		transact(brokers, a[0], a[1])
	case "create":
		create(brokers, a[0], a[1])
	case "configure":
		configure(brokers, a[0], a[1])
	}
}
