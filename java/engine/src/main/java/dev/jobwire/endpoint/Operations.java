package dev.jobwire.endpoint;

import dev.jobwire.Json;
import dev.jobwire.endpoint.Arguments.BadRequest;
import java.io.InputStream;
import java.util.Optional;
import java.util.function.BiFunction;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Answers operations: 200 with the result, 400 for an invalid request, 404 for an unknown
 * operation, 500 if the engine or its database failed. Never fails.
 *
 * @param results returns the result of an operation; empty if it is unknown
 */
record Operations(BiFunction<String, Arguments, Optional<Object>> results) {
    private static final Logger LOG = LoggerFactory.getLogger(Operations.class);

    /** Reads a bounded part of the body, and does not close it. */
    ExecutionEndpoint.Answer answer(String operation, InputStream body) {
        try {
            return answer(operation, Body.text(body));
        } catch (BadRequest bad) {
            return ExecutionEndpoint.error(400, bad.getMessage());
        }
    }

    ExecutionEndpoint.Answer answer(String operation, String body) {
        try {
            Arguments arguments = Arguments.of(Body.checked(body));
            return results.apply(operation, arguments)
                    .map(result -> new ExecutionEndpoint.Answer(200, Json.of(result)))
                    .orElseGet(() -> ExecutionEndpoint.error(
                            404, "there is no operation " + operation));
        } catch (BadRequest bad) {
            return ExecutionEndpoint.error(400, bad.getMessage());
        } catch (RuntimeException | LinkageError failed) {
            LOG.warn("the operation {} failed", operation, failed);
            return ExecutionEndpoint.error(500, failed.toString());
        }
    }
}
