package jobwire.engines;

import com.sun.net.httpserver.BasicAuthenticator;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executors;

/** The server of HTTP for engines without Spring. */
public final class Http {
    private static final int THREADS = 64;

    private Http() {}

    /** Listens until the program ends. The execution endpoint needs basic authentication. */
    public static void serve(Requests requests, Settings settings) throws IOException {
        // Without it an answer on a kept connection waits 40 ms for the client's TCP.
        System.setProperty("sun.net.httpserver.nodelay", "true");
        HttpServer server =
                HttpServer.create(new InetSocketAddress("127.0.0.1", settings.port()), THREADS);
        server.setExecutor(Executors.newFixedThreadPool(THREADS));
        HttpHandler handler = exchange -> handle(requests, exchange);
        server.createContext("/test", handler);
        server.createContext("/jobwire", handler).setAuthenticator(users(settings));
        server.start();
    }

    private static BasicAuthenticator users(Settings settings) {
        return new BasicAuthenticator("engine") {
            @Override
            public boolean checkCredentials(String user, String password) {
                return settings.user().equals(user) && settings.password().equals(password);
            }
        };
    }

    private static void handle(Requests requests, HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] request = exchange.getRequestBody().readAllBytes();
            String method = exchange.getRequestMethod();
            String path = exchange.getRequestURI().getPath();
            Map<String, String> parameters =
                    parameters(exchange.getRequestURI().getRawQuery());
            Optional<Answer> refused = Optional.empty();
            if (requests.isList(method, path)) {
                refused = requests.answerList(
                        path,
                        new ByteArrayInputStream(request),
                        parameters.get("instance"),
                        () -> {
                            exchange.getResponseHeaders()
                                    .set("Content-Type", "application/x-ndjson");
                            exchange.sendResponseHeaders(200, 0);
                            return exchange.getResponseBody();
                        });
                if (refused.isEmpty()) {
                    return;
                }
            }
            Answer answer = refused
                    .or(() -> requests.operate(method, path, new ByteArrayInputStream(request)))
                    .orElseGet(() -> requests.answer(method, path, parameters));
            byte[] body = answer.json().getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(answer.status(), body.length);
            exchange.getResponseBody().write(body);
        }
    }

    private static Map<String, String> parameters(String query) {
        Map<String, String> parameters = new LinkedHashMap<>();
        if (query == null || query.isEmpty()) {
            return parameters;
        }
        for (String pair : query.split("&")) {
            int equals = pair.indexOf('=');
            String name = equals < 0 ? pair : pair.substring(0, equals);
            String value = equals < 0 ? "" : pair.substring(equals + 1);
            parameters.put(decoded(name), decoded(value));
        }
        return parameters;
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }
}
