package dev.jobwire.hints;

import java.util.ArrayList;
import java.util.List;

/** Reports invalid settings. The message names all mistakes, each with a remedy. */
public final class BadSettings extends IllegalArgumentException {
    private static final long serialVersionUID = 1;

    private final ArrayList<String> mistakes;

    BadSettings(List<String> mistakes) {
        super(String.join("; ", mistakes));
        this.mistakes = new ArrayList<>(mistakes);
    }

    BadSettings(String mistake) {
        this(List.of(mistake));
    }

    /** Returns the mistakes, one sentence each. */
    public List<String> mistakes() {
        return List.copyOf(mistakes);
    }
}
