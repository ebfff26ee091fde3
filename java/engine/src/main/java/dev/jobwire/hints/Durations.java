package dev.jobwire.hints;

import java.time.Duration;
import java.time.format.DateTimeParseException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Parses durations, in the form of the program's settings: {@code 500ms}, {@code PT5M}. */
final class Durations {
    private static final Pattern SHORT = Pattern.compile("([0-9]{1,9})(ms|s|m|h|d)");

    private Durations() {}

    static Duration parse(String text) {
        Matcher matcher = SHORT.matcher(text);
        if (matcher.matches()) {
            long number = Long.parseLong(matcher.group(1));
            return switch (matcher.group(2)) {
                case "ms" -> Duration.ofMillis(number);
                case "s" -> Duration.ofSeconds(number);
                case "m" -> Duration.ofMinutes(number);
                case "h" -> Duration.ofHours(number);
                default -> Duration.ofDays(number);
            };
        }
        try {
            return Duration.parse(text);
        } catch (DateTimeParseException bad) {
            throw new IllegalArgumentException("write a duration as 500ms, 30s, 5m or PT5M", bad);
        }
    }
}
