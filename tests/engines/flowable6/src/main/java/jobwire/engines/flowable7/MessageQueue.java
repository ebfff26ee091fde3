package jobwire.engines.flowable7;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import org.flowable.engine.ProcessEngine;
import org.flowable.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.flowable.job.api.JobInfo;
import org.flowable.job.service.JobServiceConfiguration;
import org.flowable.job.service.impl.asyncexecutor.ExecuteAsyncRunnable;
import org.flowable.job.service.impl.asyncexecutor.message.AbstractMessageBasedJobManager;
import org.flowable.spring.SpringProcessEngineConfiguration;
import org.flowable.spring.boot.EngineConfigurationConfigurer;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.ApplicationRunner;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * Flowable's message-queue mode, which 7.0 has removed, over RabbitMQ. The property {@code messages} is the
 * broker's URL. A node with {@code messages.send} sends a message for each job, and one with {@code
 * messages.receive} runs the jobs of the messages.
 */
@Configuration
@ConditionalOnProperty("messages")
public class MessageQueue {
    private static final String QUEUE = "flowable-jobs";

    @Bean
    Connection connection(@Value("${messages}") String url) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        Connection connection = factory.newConnection();
        try (Channel channel = connection.createChannel()) {
            channel.queueDeclare(QUEUE, true, false, false, null);
        }
        return connection;
    }

    @Bean
    @ConditionalOnProperty("messages.send")
    EngineConfigurationConfigurer<SpringProcessEngineConfiguration> sends(
            Connection connection) throws IOException {
        Sender sender = new Sender(connection.createChannel());
        return configuration -> {
            configuration.setAsyncExecutorMessageQueueMode(true);
            configuration.setJobManager(sender);
        };
    }

    @Bean
    @ConditionalOnProperty("messages.receive")
    ApplicationRunner receives(Connection connection, ProcessEngine engine) {
        ProcessEngineConfigurationImpl configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        JobServiceConfiguration jobs = configuration.getJobServiceConfiguration();
        return arguments -> {
            Channel channel = connection.createChannel();
            channel.basicQos(1);
            channel.basicConsume(
                    QUEUE,
                    false,
                    (tag, message) -> {
                        String job = new String(message.getBody(), StandardCharsets.UTF_8);
                        new ExecuteAsyncRunnable(job, jobs, jobs.getJobEntityManager(), null).run();
                        channel.basicAck(message.getEnvelope().getDeliveryTag(), false);
                    },
                    tag -> {});
        };
    }

    /** Sends the id of each job after the transaction that has created it. */
    private static final class Sender extends AbstractMessageBasedJobManager {
        private final Channel channel;

        private Sender(Channel channel) {
            this.channel = channel;
        }

        @Override
        protected void sendMessage(JobInfo job) {
            AMQP.BasicProperties properties = MessageProperties.PERSISTENT_BASIC;
            byte[] body = job.getId().getBytes(StandardCharsets.UTF_8);
            try {
                // A channel is for one thread.
                synchronized (channel) {
                    channel.basicPublish("", QUEUE, properties, body);
                }
            } catch (IOException failed) {
                throw new UncheckedIOException(failed);
            }
        }
    }
}
