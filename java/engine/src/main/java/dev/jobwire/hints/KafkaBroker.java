package dev.jobwire.hints;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Publishes to Kafka: to the topic of the lane, which the nodes create. The hints of a process
 * instance share a partition. Hints of one partition share a message.
 */
final class KafkaBroker implements Broker {
    private static final Duration CLOSE = Duration.ofSeconds(2);
    private static final int BUFFER_BYTES = 8 << 20;

    private final HintSettings settings;
    private final String topic;
    private final String control;
    /** The key of control messages. A node ignores messages with its own key. */
    private final String process = UUID.randomUUID().toString();
    private Producer<String, byte[]> producer;

    KafkaBroker(HintSettings settings) {
        this.settings = settings;
        this.topic = settings.prefix() + ".lane." + settings.lane();
        this.control = settings.prefix() + ".control";
    }

    @Override
    public void connect() throws BrokerException, InterruptedException {
        partitions();
    }

    @Override
    public int publish(List<Hint> hints) throws BrokerException, InterruptedException {
        int partitions = partitions();
        Map<Integer, Batch> batches = new LinkedHashMap<>();
        // Hints without an instance may go to any partition. All of them go to one.
        String shared = hints.get(0).id().toString();
        for (Hint hint : hints) {
            String key = hint.instance() == null ? shared : hint.instance();
            batches.computeIfAbsent(
                    KafkaPartitions.of(key, partitions), of -> new Batch(key, new ArrayList<>()))
                    .hints()
                    .add(hint);
        }
        long now = Clock.micros();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try {
            for (Map.Entry<Integer, Batch> entry : batches.entrySet()) {
                Batch batch = entry.getValue();
                for (HintMessage message :
                        HintMessage.pack(batch.hints(), settings.hintsPerMessage(), now)) {
                    sent.add(producer.send(new ProducerRecord<>(
                            topic, entry.getKey(), batch.key(), message.text())));
                }
            }
            // The producer itself fails a message after the confirm timeout.
            long most = settings.confirmTimeout().toMillis() * 2;
            for (Future<RecordMetadata> confirm : sent) {
                confirm.get(most, TimeUnit.MILLISECONDS);
            }
        } catch (ExecutionException failed) {
            throw failed(failed.getCause());
        } catch (TimeoutException | KafkaException failed) {
            throw failed(failed);
        }
        return 0;
    }

    @Override
    public void tell(byte[] message) throws BrokerException, InterruptedException {
        partitions();
        try {
            producer.send(new ProducerRecord<>(control, process, message));
        } catch (KafkaException failed) {
            throw failed(failed);
        }
    }

    @Override
    public void close() {
        if (producer != null) {
            try {
                producer.close(CLOSE);
            } catch (KafkaException notClosed) {
                // The producer is no longer used.
            }
        }
        producer = null;
    }

    /** Returns the number of partitions of the lane; connects if necessary. */
    private int partitions() throws BrokerException, InterruptedException {
        try {
            if (producer == null) {
                producer = new KafkaProducer<>(
                        properties(), new StringSerializer(), new ByteArraySerializer());
            }
            return producer.partitionsFor(topic).size();
        } catch (KafkaException failed) {
            throw failed(failed);
        } catch (IOException failed) {
            throw new BrokerException("can't read a file of the broker's security", failed);
        }
    }

    private BrokerException failed(Throwable failure) throws InterruptedException {
        if (failure instanceof InterruptException) {
            // The client has set the flag again.
            Thread.interrupted();
            throw new InterruptedException("during a request to Kafka");
        }
        if (!(failure instanceof RetriableException) && !(failure instanceof TimeoutException)) {
            // A producer does not recover from the loss of its state on the brokers.
            close();
        }
        return new BrokerException("can't publish to " + settings.broker(), failure);
    }

    private Map<String, Object> properties() throws IOException {
        BrokerUrl broker = settings.broker();
        long timeout = settings.confirmTimeout().toMillis();
        Map<String, Object> properties = new HashMap<>();
        properties.put("bootstrap.servers",
                String.join(",", broker.hosts().stream().map(BrokerUrl.Host::toString).toList()));
        properties.put("client.id", "jobwire-hints");
        properties.put("acks", "all");
        properties.put("enable.idempotence", true);
        properties.put("linger.ms", 0);
        properties.put("buffer.memory", BUFFER_BYTES);
        properties.put("max.block.ms", timeout);
        properties.put("request.timeout.ms", Math.toIntExact(timeout));
        properties.put("delivery.timeout.ms", Math.toIntExact(timeout));
        KafkaSecurity.add(settings, properties);
        properties.putAll(settings.kafkaProperties());
        return properties;
    }

    /** Hints of one partition, and the key of the first one. */
    private record Batch(String key, List<Hint> hints) {}
}
