package dev.jobwire.endpoint;

import java.util.Map;
import java.util.Optional;

/** The operations that change jobs for operators: {@code retry} and {@code delete}. */
record Changes(JobOperator operator) {
    Optional<Object> result(String operation, Arguments arguments) {
        return Optional.ofNullable(switch (operation) {
            case "retry" -> Map.of("found", operator.retry(
                    arguments.text("id"), (int) arguments.number("retries", 1, 10_000)));
            case "delete" -> Map.of("found", operator.delete(arguments.text("id")));
            default -> null;
        });
    }
}
