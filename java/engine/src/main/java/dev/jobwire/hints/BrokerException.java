package dev.jobwire.hints;

/**
 * Reports that the broker is unreachable, refuses a request or does not answer. Never shows a
 * password.
 */
final class BrokerException extends Exception {
    private static final long serialVersionUID = 1;

    BrokerException(String problem, Throwable cause) {
        super(cause == null ? problem : problem + ": " + described(cause), cause);
    }

    private static String described(Throwable cause) {
        String message = cause.getMessage();
        String name = cause.getClass().getSimpleName();
        return message == null ? name : name + ": " + message;
    }
}
