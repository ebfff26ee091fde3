package dev.jobwire.hints;

import java.nio.charset.StandardCharsets;

/** The partition of a key, as Kafka's default partitioner chooses it: MurmurHash2. */
final class KafkaPartitions {
    private static final int SEED = 0x9747b28c;
    private static final int FACTOR = 0x5bd1e995;

    private KafkaPartitions() {}

    /** Returns the partition of a key in a topic with this number of partitions. */
    static int of(String key, int partitions) {
        return (hash(key.getBytes(StandardCharsets.UTF_8)) & 0x7fffffff) % partitions;
    }

    /** Returns the hash of a key. */
    static int hash(byte[] key) {
        int hash = SEED ^ key.length;
        int at = 0;
        for (; at + 4 <= key.length; at += 4) {
            int word = part(key, at, 4) * FACTOR;
            hash = hash * FACTOR ^ (word ^ word >>> 24) * FACTOR;
        }
        if (at < key.length) {
            hash = (hash ^ part(key, at, key.length - at)) * FACTOR;
        }
        hash = (hash ^ hash >>> 13) * FACTOR;
        return hash ^ hash >>> 15;
    }

    /** Returns bytes as a number, the first byte lowest. */
    private static int part(byte[] key, int from, int bytes) {
        int number = 0;
        for (int n = 0; n < bytes; n++) {
            number |= (key[from + n] & 0xff) << 8 * n;
        }
        return number;
    }
}
