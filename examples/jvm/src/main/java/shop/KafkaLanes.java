package shop;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.stereotype.Component;

/**
 * Keyed by the instance, so that all its hints share a partition. One hint to a message: the
 * producer batches by partition.
 */
@Component
@ConditionalOnProperty(name = "jobwire.broker", havingValue = "kafka")
class KafkaLanes implements Lanes {
    private static final Logger log = LoggerFactory.getLogger(KafkaLanes.class);

    private final KafkaTemplate<String, byte[]> kafka;
    private final String prefix;

    KafkaLanes(KafkaTemplate<String, byte[]> kafka, @Value("${jobwire.prefix}") String prefix) {
        this.kafka = kafka;
        this.prefix = prefix;
    }

    @Override
    public void publish(Job job, byte[] hint) {
        String key = job.instance() != null ? job.instance() : job.id().toString();
        kafka.send(prefix + ".lane." + job.lane(), key, hint)
                .whenComplete(
                        (sent, lost) -> {
                            if (lost != null) {
                                log.warn("no hint for job {}: {}", job.id(), lost.toString());
                            }
                        });
    }
}
