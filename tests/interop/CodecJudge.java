import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.HexFormat;
import java.util.Map;

import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

/**
 * Judges klamm's codec by Kafka's own classes. It prints every layout that they know, one per line, and for each
 * message in the file (kind, key, version, hex) the bytes that they write after reading it.
 */
public class CodecJudge {
    public static void main(String[] arguments) throws Exception {
        for (ApiMessageType api : ApiMessageType.values()) {
            printLayouts("request", api, api.requestSchemas());
            printLayouts("response", api, api.responseSchemas());
        }
        for (String line : Files.readAllLines(Paths.get(arguments[0]))) {
            System.out.println("message " + line + " " + rewritten(line.split(" ", -1)));
        }
    }

    private static void printLayouts(String kind, ApiMessageType api, Schema[] schemas) {
        for (int version = 0; version < schemas.length; version++) {
            if (schemas[version] != null) {
                System.out.println("layout " + kind + " " + api.apiKey() + " " + version + " " + layout(schemas[version]));
            }
        }
    }

    private static String layout(Schema schema) {
        StringBuilder text = new StringBuilder("{");
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields) {
                for (Map.Entry<Integer, Field> tagged : tagged(field.def.type).entrySet()) {
                    text.append("#").append(tagged.getKey()).append(":");
                    text.append(tagged.getValue().name).append(":").append(type(tagged.getValue().type)).append(";");
                }
            } else {
                text.append(field.def.name).append(":").append(type(field.def.type)).append(";");
            }
        }
        return text.append("}").toString();
    }

    /** Kafka 2.5 has no accessor for them. */
    @SuppressWarnings("unchecked")
    private static Map<Integer, Field> tagged(Type type) {
        try {
            java.lang.reflect.Field fields = TaggedFields.class.getDeclaredField("fields");
            fields.setAccessible(true);
            return (Map<Integer, Field>) fields.get(type);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String type(Type type) {
        if (type instanceof Schema) {
            return layout((Schema) type);
        }
        if (type.isArray()) {
            return (type.isNullable() ? "?" : "") + "[]" + type(type.arrayElementType().get());
        }
        return type.toString();
    }

    private static String rewritten(String[] asked) {
        try {
            ApiMessageType api = ApiMessageType.fromApiKey(Short.parseShort(asked[1]));
            short version = Short.parseShort(asked[2]);
            ApiMessage message = asked[0].equals("request") ? api.newRequest() : api.newResponse();
            ByteBuffer in = ByteBuffer.wrap(HexFormat.of().parseHex(asked[3]));
            message.read(new ByteBufferAccessor(in), version);
            if (in.hasRemaining()) {
                return "left:" + in.remaining();
            }
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer out = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(out), cache, version);
            return HexFormat.of().formatHex(out.array());
        } catch (Exception error) {
            return error.toString().replace(' ', '_').replace('\n', '_');
        }
    }
}
