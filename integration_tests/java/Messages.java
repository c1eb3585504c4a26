import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/** Reads messages with Kafka's own classes: NAME VERSION HEX in, RESULT HEX JSON out, a line each. */
public class Messages {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            short version = Short.parseShort(words[1]);
            String hex = words.length > 2 ? words[2] : "";
            String name = "org.apache.kafka.common.message." + words[0] + "Data";
            Class<?> kind = Class.forName(name);
            Message message = (Message) kind.getDeclaredConstructor().newInstance();
            ByteBuffer body = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
            message.read(new ByteBufferAccessor(body), version);
            if (body.hasRemaining()) {
                throw new IllegalStateException(body.remaining() + " bytes are left of " + line);
            }
            Class<?> converter = Class.forName(name + "JsonConverter");
            Object json = converter.getMethod("write", kind, short.class).invoke(null, message, version);
            ByteBuffer written = MessageUtil.toByteBuffer(message, version);
            byte[] bytes = new byte[written.remaining()];
            written.get(bytes);
            System.out.println("RESULT " + HexFormat.of().formatHex(bytes) + " " + (JsonNode) json);
        }
    }
}
