package jobwire.engines;

import java.util.Optional;

/**
 * The settings of an engine, from the environment.
 *
 * <table>
 * <caption>Variables</caption>
 * <tr><td>ENGINE_JDBC_URL</td><td>the database; required</td></tr>
 * <tr><td>ENGINE_DATABASE_USER, ENGINE_DATABASE_PASSWORD</td><td>postgres, empty</td></tr>
 * <tr><td>ENGINE_CONNECTIONS</td><td>the size of the engine's pool; 20</td></tr>
 * <tr><td>ENGINE_PORT</td><td>the port on 127.0.0.1; 8080</td></tr>
 * <tr><td>ENGINE_BASE</td><td>the path of the engine's REST, if it has one</td></tr>
 * <tr><td>ENGINE_USER, ENGINE_PASSWORD</td><td>basic authentication; rest, secret</td></tr>
 * <tr><td>ENGINE_EXECUTOR</td><td>off, on or message-queue; off</td></tr>
 * <tr><td>ENGINE_LOCK_MILLIS</td><td>how long the engine's executor locks a job, if it can be set
 *   here; 300000</td></tr>
 * <tr><td>ENGINE_RESET_MILLIS</td><td>how often it resets expired locks; 60000</td></tr>
 * <tr><td>ENGINE_ACQUIRE_MILLIS</td><td>how often Activiti's executor looks for jobs, which it then
 *   takes by 100 for eight threads; Activiti's defaults</td></tr>
 * </table>
 *
 * @param node the name of this program in the table of effects
 */
public record Settings(
        String jdbcUrl,
        String databaseUser,
        String databasePassword,
        int connections,
        int port,
        Optional<String> base,
        String user,
        String password,
        Executor executor,
        int lockMillis,
        int resetMillis,
        Optional<Integer> acquireMillis,
        String node) {

    /** Reads the environment. */
    public static Settings fromEnvironment() {
        int port = Integer.parseInt(variable("ENGINE_PORT", "8080"));
        return new Settings(
                variable("ENGINE_JDBC_URL").orElseThrow(
                        () -> new IllegalArgumentException("ENGINE_JDBC_URL is not set")),
                variable("ENGINE_DATABASE_USER", "postgres"),
                variable("ENGINE_DATABASE_PASSWORD", ""),
                Integer.parseInt(variable("ENGINE_CONNECTIONS", "20")),
                port,
                variable("ENGINE_BASE"),
                variable("ENGINE_USER", "rest"),
                variable("ENGINE_PASSWORD", "secret"),
                Executor.named(variable("ENGINE_EXECUTOR", "off")),
                Integer.parseInt(variable("ENGINE_LOCK_MILLIS", "300000")),
                Integer.parseInt(variable("ENGINE_RESET_MILLIS", "60000")),
                variable("ENGINE_ACQUIRE_MILLIS").map(Integer::valueOf),
                Integer.toString(port));
    }

    private static Optional<String> variable(String name) {
        return Optional.ofNullable(System.getenv(name)).filter(value -> !value.isEmpty());
    }

    private static String variable(String name, String otherwise) {
        return variable(name).orElse(otherwise);
    }
}
