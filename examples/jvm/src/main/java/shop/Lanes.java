package shop;

/** Where hints go: {@code PREFIX.lane.LANE}, a queue of RabbitMQ or a topic of Kafka. */
interface Lanes {
    void publish(Job job, byte[] hint);
}
