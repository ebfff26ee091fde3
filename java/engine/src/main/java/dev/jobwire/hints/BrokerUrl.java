package dev.jobwire.hints;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * The URL of a broker, in the form of the program's setting {@code broker_url}.
 *
 * <pre>
 * amqp[s]://[user:password@]host[:port][,host[:port]]...[/virtual-host][?heartbeat=SECONDS]
 * kafka://[user:password@]host[:port][,host[:port]]...[/prefix][?tls=true&amp;sasl=MECHANISM]
 * </pre>
 *
 * <p>No message and no {@link #toString} shows the password.
 */
final class BrokerUrl {
    private static final Set<String> AMQP = Set.of("heartbeat", "auth_mechanism");
    /** The parameters of Kafka. Only nodes use {@code group}. */
    private static final Set<String> KAFKA = Set.of("tls", "sasl", "group");
    private static final int LAST_PORT = 65_535;

    /** A host and a port. */
    record Host(String name, int port) {
        boolean isLoopback() {
            return name.equalsIgnoreCase("localhost")
                    || name.equals("::1")
                    || name.matches("127(\\.[0-9]{1,3}){3}");
        }

        @Override
        public String toString() {
            return (name.indexOf(':') < 0 ? name : "[" + name + "]") + ":" + port;
        }
    }

    private final String scheme;
    private final String user;
    private final String password;
    private final List<Host> hosts;
    private final String path;
    private final Map<String, String> parameters;

    private BrokerUrl(
            String scheme,
            String user,
            String password,
            List<Host> hosts,
            String path,
            Map<String, String> parameters) {
        this.scheme = scheme;
        this.user = user;
        this.password = password;
        this.hosts = List.copyOf(hosts);
        this.path = path;
        this.parameters = parameters;
    }

    /** Parses a URL. Fails with the first mistake. */
    static BrokerUrl parse(String text) {
        int colon = text.indexOf("://");
        String scheme = colon < 0 ? "" : text.substring(0, colon);
        int port = switch (scheme) {
            case "amqp" -> 5672;
            case "amqps" -> 5671;
            case "kafka" -> 9092;
            default -> throw mistake("begins with none of amqp://, amqps:// and kafka://");
        };
        String rest = text.substring(colon + 3);
        String query = after(rest, '?').orElse("");
        rest = before(rest, '?');
        String path = after(rest, '/').orElse("");
        String authority = before(rest, '/');
        if ((path + query).indexOf('@') >= 0) {
            throw mistake("has an '@' behind the hosts; in a user or a password write '/' as %2F, "
                    + "'?' as %3F and '@' as %40");
        }
        int at = authority.lastIndexOf('@');
        String[] login = at < 0 ? new String[0] : authority.substring(0, at).split(":", 2);
        if (login.length == 1) {
            throw mistake("names a user without a password; write user:password@host");
        }
        List<Host> hosts = new ArrayList<>();
        for (String host : authority.substring(at + 1).split(",", -1)) {
            hosts.add(host(host, port));
        }
        return new BrokerUrl(
                scheme,
                login.length == 2 ? decoded(login[0]) : null,
                login.length == 2 ? decoded(login[1]) : null,
                hosts,
                path(path),
                parameters(query, scheme.equals("kafka") ? KAFKA : AMQP));
    }

    private static Host host(String text, int port) {
        int colon = text.lastIndexOf(':');
        if (text.startsWith("[") && text.endsWith("]")) {
            colon = -1;
        }
        String name = colon < 0 ? text : text.substring(0, colon);
        if (name.startsWith("[") && name.endsWith("]")) {
            name = name.substring(1, name.length() - 1);
        }
        if (!name.matches("[A-Za-z0-9._:-]+")) {
            throw mistake("names a host with other characters than letters, digits, '-', '_' and "
                    + "'.', or none; write host:port, several separated by commas");
        }
        return new Host(name, colon < 0 ? port : number("port", text.substring(colon + 1)));
    }

    private static int number(String what, String text) {
        if (!text.matches("[0-9]{1,5}") || Integer.parseInt(text) > LAST_PORT) {
            throw mistake("has a " + what + " that is not a number up to " + LAST_PORT);
        }
        return Integer.parseInt(text);
    }

    private static String path(String path) {
        if (path.indexOf('/') >= 0) {
            throw mistake("has a second '/' behind the hosts; in a virtual host write it as %2F");
        }
        return decoded(path);
    }

    private static Map<String, String> parameters(String query, Set<String> known) {
        Map<String, String> parameters = new LinkedHashMap<>();
        for (String pair : query.isEmpty() ? new String[0] : query.split("&")) {
            String name = before(pair, '=');
            if (!known.contains(name)) {
                throw mistake("has an unknown parameter behind '?'; known are " + known);
            }
            parameters.put(name, decoded(after(pair, '=').orElse("")));
        }
        return parameters;
    }

    private static String decoded(String text) {
        try {
            // The decoder is for HTML forms, in which '+' is a space.
            return URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
        } catch (IllegalArgumentException notEncoded) {
            throw mistake("has a '%' that no two hexadecimal digits follow; write it as %25");
        }
    }

    private static String before(String text, char mark) {
        int at = text.indexOf(mark);
        return at < 0 ? text : text.substring(0, at);
    }

    private static Optional<String> after(String text, char mark) {
        int at = text.indexOf(mark);
        return at < 0 ? Optional.empty() : Optional.of(text.substring(at + 1));
    }

    private static BadSettings mistake(String problem) {
        return new BadSettings("the URL of the broker (broker_url) " + problem);
    }

    boolean isKafka() {
        return scheme.equals("kafka");
    }

    boolean isTls() {
        return scheme.equals("amqps") || "true".equals(parameters.get("tls"));
    }

    boolean isLoopback() {
        return hosts.stream().allMatch(Host::isLoopback);
    }

    /** Returns the user, or null if the URL names none. */
    String user() {
        return user;
    }

    String password() {
        return password;
    }

    List<Host> hosts() {
        return hosts;
    }

    /** Returns the virtual host or the prefix; empty if the URL has none. */
    String path() {
        return path;
    }

    Optional<String> parameter(String name) {
        return Optional.ofNullable(parameters.get(name));
    }

    /** Returns the value of a parameter that is a number. */
    Optional<Integer> number(String name) {
        return parameter(name).map(text -> number(name, text));
    }

    /** Returns the form for logs. */
    @Override
    public String toString() {
        String shown = user == null ? "" : user + "@";
        String list = String.join(",", hosts.stream().map(Host::toString).toList());
        return scheme + "://" + shown + list + "/" + path;
    }
}
