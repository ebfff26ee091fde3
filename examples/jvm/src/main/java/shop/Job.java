package shop;

import java.util.UUID;

/**
 * A job that was created, as far as its hint needs it.
 *
 * @param instance its process instance if it is exclusive, else null
 */
public record Job(UUID id, String lane, String instance) {}
