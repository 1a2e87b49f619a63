import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.config.ConfigResource;

/** What Java clients have since 2.3: changes of single keys (KIP-339). */
public class IncrementalClient implements ModernClient.Incremental {
    public void set(AdminClient client, ConfigResource resource, String key, String value) throws Exception {
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET);
        client.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }
}
