package jobwire.engines;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** The processes: {@code processes/NAME.bpmn20.xml} in the class path. */
public final class Processes {
    /** Those that are deployed at the start. */
    public static final List<String> AT_START = List.of(
            "one", "chain", "fork", "timer", "cycle", "boundary", "failing", "slow", "held",
            "siblings", "beside", "repeating", "broken");

    private Processes() {}

    /** The name of the resource in a deployment. */
    public static String resource(String name) {
        return "processes/" + name + ".bpmn20.xml";
    }

    /** The text of a process. */
    public static String text(String name) {
        String resource = resource(name);
        try (InputStream stream = Processes.class.getClassLoader().getResourceAsStream(resource)) {
            if (stream == null) {
                throw new IllegalArgumentException("there is no " + resource);
            }
            return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new IllegalStateException(resource, error);
        }
    }
}
