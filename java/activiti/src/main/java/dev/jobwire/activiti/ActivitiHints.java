package dev.jobwire.activiti;

import dev.jobwire.hints.HintPublisher;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.activiti.engine.delegate.event.ActivitiEntityEvent;
import org.activiti.engine.delegate.event.ActivitiEvent;
import org.activiti.engine.delegate.event.ActivitiEventListener;
import org.activiti.engine.delegate.event.ActivitiEventType;
import org.activiti.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.activiti.engine.impl.cfg.TransactionContext;
import org.activiti.engine.impl.cfg.TransactionState;
import org.activiti.engine.impl.context.Context;
import org.activiti.engine.impl.persistence.entity.JobEntity;
import org.activiti.engine.impl.persistence.entity.TimerJobEntity;

/**
 * Publishes the hints of Activiti's jobs after the commit of the transaction that created them. The
 * hints are for new jobs, for jobs that are ready again after a failure or a suspension, and for
 * timers that the engine moved. The executor of the engine must be off ({@code
 * asyncExecutorActivate = false}), and its own message-queue mode, too.
 *
 * <pre>{@code
 * ActivitiHints.install(configuration, HintPublisher.start(settings));
 * ProcessEngine engine = configuration.buildProcessEngine();
 * }</pre>
 */
public final class ActivitiHints implements ActivitiEventListener {
    /** The lane of the hints, unless the nodes have another {@code engine_lane}. */
    public static final String LANE = "activiti";

    private final HintPublisher hints;

    private ActivitiHints(HintPublisher hints) {
        this.hints = hints;
    }

    /** Adds the listener to an engine before it is built. */
    public static void install(
            ProcessEngineConfigurationImpl configuration, HintPublisher hints) {
        Map<String, List<ActivitiEventListener>> listeners = new HashMap<>();
        if (configuration.getTypedEventListeners() != null) {
            listeners.putAll(configuration.getTypedEventListeners());
        }
        ActivitiEventListener listener = new ActivitiHints(hints);
        listeners.merge(
                ActivitiEventType.ENTITY_CREATED.name(),
                List.of(listener),
                (some, more) -> Stream.concat(some.stream(), more.stream()).toList());
        configuration.setTypedEventListeners(listeners);
    }

    @Override
    public void onEvent(ActivitiEvent event) {
        if (!(event instanceof ActivitiEntityEvent created)) {
            return;
        }
        if (created.getEntity() instanceof JobEntity job) {
            // A locked job belongs to the engine's own executor.
            afterCommit(() -> {
                if (job.getLockOwner() == null) {
                    hints.ready(job.getId(), job.getProcessInstanceId());
                }
            });
        } else if (created.getEntity() instanceof TimerJobEntity timer) {
            afterCommit(() -> {
                if (timer.getDuedate() != null) {
                    hints.timer(timer.getDuedate());
                }
            });
        }
    }

    private static void afterCommit(Runnable publish) {
        TransactionContext transaction = Context.getTransactionContext();
        if (transaction != null) {
            transaction.addTransactionListener(
                    TransactionState.COMMITTED, context -> publish.run());
        }
    }

    @Override
    public boolean isFailOnException() {
        return false;
    }
}
