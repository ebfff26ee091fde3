package dev.jobwire.hints;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Address;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultSaslConfig;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeoutException;

/**
 * Publishes to RabbitMQ: over the default exchange to the queue of the lane, which the nodes
 * declare. Messages are mandatory, so the broker returns them while no node has declared the queue.
 */
final class RabbitBroker implements Broker {
    private static final int CONNECT_MILLIS = 10_000;
    private static final int CLOSE_MILLIS = 2_000;
    private static final int HEARTBEAT_SECONDS = 10;
    private static final int TRANSIENT = 1;

    private final HintSettings settings;
    private final String queue;
    private final String control;
    /** The numbers of the returned messages, as their message ids. */
    private final Set<String> returned = ConcurrentHashMap.newKeySet();
    private volatile String blocked;
    private Connection connection;
    private Channel lane;
    private Channel telling;

    RabbitBroker(HintSettings settings) {
        this.settings = settings;
        this.queue = settings.prefix() + ".lane." + settings.lane();
        this.control = settings.prefix() + ".control";
    }

    @Override
    public void connect() throws BrokerException {
        if (connection != null && connection.isOpen() && lane.isOpen()) {
            return;
        }
        close();
        try {
            List<Address> hosts = new ArrayList<>();
            for (BrokerUrl.Host host : settings.broker().hosts()) {
                hosts.add(new Address(host.name(), host.port()));
            }
            Collections.shuffle(hosts);
            connection = factory().newConnection(hosts, "jobwire-hints");
            connection.addBlockedListener(reason -> blocked = reason, () -> blocked = null);
            lane = connection.createChannel();
            lane.confirmSelect();
            lane.addReturnListener(back -> returned.add(back.getProperties().getMessageId()));
        } catch (IOException
                | TimeoutException
                | GeneralSecurityException
                | ShutdownSignalException failed) {
            close();
            throw new BrokerException("can't connect to " + settings.broker(), failed);
        }
    }

    @Override
    public int publish(List<Hint> hints) throws BrokerException, InterruptedException {
        connect();
        if (blocked != null) {
            throw new BrokerException("the broker takes no messages: " + blocked, null);
        }
        returned.clear();
        List<HintMessage> messages =
                HintMessage.pack(hints, settings.hintsPerMessage(), Clock.micros());
        try {
            for (int number = 0; number < messages.size(); number++) {
                AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder()
                        .contentType("application/json")
                        .deliveryMode(TRANSIENT)
                        .messageId(Integer.toString(number))
                        .build();
                lane.basicPublish("", queue, true, properties, messages.get(number).text());
            }
            if (!lane.waitForConfirms(settings.confirmTimeout().toMillis())) {
                throw new BrokerException("the broker rejected a message for '" + queue
                        + "': the queue is full or unavailable", null);
            }
        } catch (IOException | TimeoutException | ShutdownSignalException failed) {
            close();
            throw new BrokerException("can't publish to " + settings.broker(), failed);
        }
        int lost = 0;
        for (String number : returned) {
            lost += messages.get(Integer.parseInt(number)).hints();
        }
        return lost;
    }

    @Override
    public void tell(byte[] message) throws BrokerException {
        connect();
        try {
            // The broker closes the channel if the exchange is missing: no node has run yet.
            if (telling == null || !telling.isOpen()) {
                telling = connection.createChannel();
            }
            AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder()
                    .contentType("application/json")
                    .deliveryMode(TRANSIENT)
                    .build();
            telling.basicPublish(control, "", properties, message);
        } catch (IOException | ShutdownSignalException failed) {
            throw new BrokerException("can't send a timer to the nodes", failed);
        }
    }

    @Override
    public void close() {
        if (connection != null) {
            connection.abort(CLOSE_MILLIS);
        }
        connection = null;
        lane = null;
        telling = null;
        blocked = null;
    }

    private ConnectionFactory factory() throws IOException, GeneralSecurityException {
        BrokerUrl broker = settings.broker();
        ConnectionFactory factory = new ConnectionFactory();
        // This class connects again.
        factory.setAutomaticRecoveryEnabled(false);
        factory.setTopologyRecoveryEnabled(false);
        factory.setConnectionTimeout(CONNECT_MILLIS);
        factory.setHandshakeTimeout(CONNECT_MILLIS);
        factory.setRequestedHeartbeat(broker.number("heartbeat").orElse(HEARTBEAT_SECONDS));
        factory.setVirtualHost(broker.path().isEmpty() ? "/" : broker.path());
        factory.setThreadFactory(Threads.named("jobwire-amqp"));
        if (broker.user() != null) {
            factory.setUsername(broker.user());
            factory.setPassword(broker.password());
        }
        if (broker.isTls()) {
            // The files are read again for each connection.
            factory.useSslProtocol(BrokerTls.context(settings));
            factory.enableHostnameVerification();
            boolean isLogIn = broker.user() == null && settings.tlsCertificate().isPresent();
            if (isLogIn || broker.parameter("auth_mechanism").orElse("").equals("external")) {
                factory.setSaslConfig(DefaultSaslConfig.EXTERNAL);
            }
        }
        return factory;
    }
}
