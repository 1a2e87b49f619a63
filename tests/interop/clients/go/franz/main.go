// The programs of the client matrix with franz-go. clients/README.md has the contract.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
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

func client(bootstrap string, options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(strings.Split(bootstrap, ",")...))...)
	check(err)
	return made
}

func records(topic string, first, count int) (found []*kgo.Record) {
	for i := first; i < first+count; i++ {
		found = append(found, &kgo.Record{
			Topic: topic, Key: fmt.Appendf(nil, "k%d", i), Value: fmt.Appendf(nil, "v%d", i),
			Headers: []kgo.RecordHeader{{Key: "n", Value: fmt.Appendf(nil, "h%d", i)}},
		})
	}
	return found
}

func produce(bootstrap, topic, compression, first, count string) {
	producer := client(bootstrap, kgo.ProducerBatchCompression(codecs[compression]))
	defer producer.Close()
	sent := records(topic, number(first), number(count))
	check(producer.ProduceSync(context.Background(), sent...).FirstErr())
}

func say(held map[int32]bool) {
	partitions := []int{}
	for partition := range held {
		partitions = append(partitions, int(partition))
	}
	sort.Ints(partitions)
	fmt.Println("assigned", strings.ReplaceAll(strings.Trim(fmt.Sprint(partitions), "[]"), " ", ","))
}

func consume(bootstrap, topic, group, isolation string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	level := kgo.ReadUncommitted()
	if isolation == "read_committed" {
		level = kgo.ReadCommitted()
	}
	held := map[int32]bool{}
	changed := func(there bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			for _, partition := range places[topic] {
				delete(held, partition)
				if there {
					held[partition] = true
				}
			}
			say(held)
		}
	}
	consumer := client(bootstrap, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(level), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.OnPartitionsAssigned(changed(true)), kgo.OnPartitionsRevoked(changed(false)),
		kgo.OnPartitionsLost(changed(false)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.BlockRebalanceOnPoll())
	defer consumer.CloseAllowingRebalance()
	for ctx.Err() == nil {
		fetches := consumer.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			fmt.Println("record", r.Partition, r.Offset, string(r.Key), string(r.Value), string(r.Headers[0].Value))
		})
		if !fetches.Empty() {
			check(consumer.CommitUncommittedOffsets(context.Background()))
		}
		consumer.AllowRebalance()
	}
}

func transact(bootstrap, topic, id string) {
	ctx := context.Background()
	producer := client(bootstrap, kgo.TransactionalID(id))
	defer producer.Close()
	for i, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		check(producer.BeginTransaction())
		check(producer.ProduceSync(ctx, records(topic, i*10, 10)...).FirstErr())
		check(producer.EndTransaction(ctx, end))
	}
}

func create(bootstrap, topic, oldTopic string) {
	asked := kadm.NewClient(client(bootstrap))
	defer asked.Close()
	_, err := asked.CreateTopic(context.Background(), 4, 3, nil, topic)
	check(err)
	_, err = asked.DeleteTopic(context.Background(), oldTopic)
	check(err)
}

func describe(bootstrap, topic string) {
	asked := kadm.NewClient(client(bootstrap))
	defer asked.Close()
	described, err := asked.ListTopics(context.Background(), topic)
	check(err)
	fmt.Println("partitions", len(described[topic].Partitions))
}

func configure(bootstrap, topic, backoff string) {
	describe(bootstrap, topic)
	ctx := context.Background()
	asked := kadm.NewClient(client(bootstrap))
	defer asked.Close()
	grown, err := asked.UpdatePartitions(ctx, 6, topic)
	check(err)
	check(grown.Error())
	brokers, err := asked.DescribeBrokerConfigs(ctx, 1)
	check(err)
	fmt.Println("broker", value(brokers, "log.segment.bytes"))
	altered := func(responses kadm.AlterConfigsResponses, err error) {
		check(err)
		for _, one := range responses {
			check(one.Err)
		}
	}
	set := func(key, value string) []kadm.AlterConfig {
		return []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}
	}
	altered(asked.AlterTopicConfigsState(ctx, set("retention.ms", "100000"), topic))
	altered(asked.AlterTopicConfigs(ctx, set("max.message.bytes", "200000"), topic))
	altered(asked.AlterBrokerConfigs(ctx, set("log.cleaner.backoff.ms", backoff), 1))
	topics, err := asked.DescribeTopicConfigs(ctx, topic)
	check(err)
	fmt.Println("topic", value(topics, "retention.ms"), value(topics, "max.message.bytes"))
}

func value(described kadm.ResourceConfigs, key string) string {
	check(described[0].Err)
	for _, config := range described[0].Configs {
		if config.Key == key {
			return config.MaybeValue()
		}
	}
	return "-"
}

func main() {
	a := os.Args[2:]
	switch os.Args[1] {
	case "produce":
		produce(a[0], a[1], a[2], a[3], a[4])
	case "consume":
		consume(a[0], a[1], a[2], a[3])
	case "transact":
		transact(a[0], a[1], a[2])
	case "create":
		create(a[0], a[1], a[2])
	case "configure":
		configure(a[0], a[1], a[2])
	}
}
