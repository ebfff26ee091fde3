package dev.jobwire.hints;

import java.util.concurrent.ThreadFactory;

/** Threads that do not keep the program alive. */
final class Threads {
    private Threads() {}

    static ThreadFactory named(String name) {
        return work -> {
            Thread thread = new Thread(work, name);
            thread.setDaemon(true);
            return thread;
        };
    }
}
