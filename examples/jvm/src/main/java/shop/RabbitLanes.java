package shop;

import org.springframework.amqp.core.MessageBuilder;
import org.springframework.amqp.core.MessageDeliveryMode;
import org.springframework.amqp.core.MessageProperties;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.stereotype.Component;

/** By the default exchange, straight to the queue. Jobwire declares it. */
@Component
@ConditionalOnProperty(name = "jobwire.broker", havingValue = "rabbitmq")
class RabbitLanes implements Lanes {
    private final RabbitTemplate rabbit;
    private final String prefix;

    RabbitLanes(RabbitTemplate rabbit, @Value("${jobwire.prefix}") String prefix) {
        this.rabbit = rabbit;
        this.prefix = prefix;
    }

    @Override
    public void publish(Job job, byte[] hint) {
        var message =
                MessageBuilder.withBody(hint)
                        .setContentType(MessageProperties.CONTENT_TYPE_JSON)
                        // Jobwire's own choice too; a lost hint costs a sweep, never the job.
                        .setDeliveryMode(MessageDeliveryMode.NON_PERSISTENT)
                        .build();
        rabbit.send("", prefix + ".lane." + job.lane(), message);
    }
}
