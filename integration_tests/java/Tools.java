import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;
import org.apache.zookeeper.util.ServiceUtils;

/**
 * Apache's command line tools, one after the other in one Java machine: one JSON command a line on
 * stdin, {"id": number, "main": class, "arguments": [...], "stdin": text}; one line "RESULT id {json}"
 * each, with code, out and err.
 *
 * <p>The standard streams are replaced once, before a tool is loaded, since Scala keeps the first
 * that it sees. What a tool prints after it has asked for its end is dropped: a process would have
 * ended there.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Thrown where a tool would end the process. */
    private static final class Ended extends Error {
        Ended() {
            super("the tool has ended", null, false, false);
        }
    }

    /** One standard stream of the tool that runs. */
    private static final class Captured extends OutputStream {
        private final ByteArrayOutputStream content = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int octet) {
            if (code == null) {
                content.write(octet);
            }
        }

        @Override
        public synchronized void write(byte[] octets, int start, int count) {
            if (code == null) {
                content.write(octets, start, count);
            }
        }

        synchronized String take() {
            String text = content.toString(StandardCharsets.UTF_8);
            content.reset();
            return text;
        }
    }

    private static volatile Integer code = null;

    private Tools() { }

    public static void main(String[] ignored) throws Exception {
        PrintStream results = System.out;
        Captured out = new Captured();
        Captured err = new Captured();
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        ServiceUtils.setSystemExitProcedure(Tools::end);
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            code = null;
            out.take();
            err.take();
            run(command);
            end0(0);
            ObjectNode result = JSON.createObjectNode();
            result.put("code", code).put("out", out.take()).put("err", err.take());
            String number = command.path("id").asText();
            results.println("RESULT " + number + " " + JSON.writeValueAsString(result));
            results.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(JsonNode command) throws Exception {
        List<String> arguments = new ArrayList<>();
        command.path("arguments").forEach(word -> arguments.add(word.asText()));
        System.setIn(new ByteArrayInputStream(
            command.path("stdin").asText().getBytes(StandardCharsets.UTF_8)));
        try {
            Class.forName(command.path("main").asText())
                .getMethod("main", String[].class)
                .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Ended)) {
                failure.getCause().printStackTrace();
                end0(1);
            }
        }
    }

    private static void end(int status) {
        end0(status);
        throw new Ended();
    }

    private static synchronized void end0(int status) {
        if (code == null) {
            System.out.flush();
            System.err.flush();
            code = status;
        }
    }
}
