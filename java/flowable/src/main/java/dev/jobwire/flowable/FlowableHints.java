package dev.jobwire.flowable;

import dev.jobwire.hints.HintPublisher;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.flowable.common.engine.api.delegate.event.AbstractFlowableEventListener;
import org.flowable.common.engine.api.delegate.event.FlowableEngineEventType;
import org.flowable.common.engine.api.delegate.event.FlowableEntityEvent;
import org.flowable.common.engine.api.delegate.event.FlowableEvent;
import org.flowable.common.engine.api.delegate.event.FlowableEventListener;
import org.flowable.common.engine.impl.cfg.TransactionState;
import org.flowable.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.flowable.job.service.impl.persistence.entity.JobEntity;
import org.flowable.job.service.impl.persistence.entity.TimerJobEntity;

/**
 * Publishes the hints of Flowable's jobs after the commit of the transaction that created them. The
 * hints are for new jobs, for jobs that are ready again after a failure or a suspension, and for
 * timers that the engine moved. The executor of the engine must be off ({@code
 * asyncExecutorActivate = false}).
 *
 * <pre>{@code
 * FlowableHints.install(configuration, HintPublisher.start(settings));
 * ProcessEngine engine = configuration.buildProcessEngine();
 * }</pre>
 */
public final class FlowableHints extends AbstractFlowableEventListener {
    /** The lane of the hints, unless the nodes have another {@code engine_lane}. */
    public static final String LANE = "flowable";

    private final HintPublisher hints;

    private FlowableHints(HintPublisher hints) {
        this.hints = hints;
    }

    /** Adds the listener to an engine before it is built. */
    public static void install(
            ProcessEngineConfigurationImpl configuration, HintPublisher hints) {
        Map<String, List<FlowableEventListener>> listeners = new HashMap<>();
        if (configuration.getTypedEventListeners() != null) {
            listeners.putAll(configuration.getTypedEventListeners());
        }
        FlowableEventListener listener = new FlowableHints(hints);
        listeners.merge(
                FlowableEngineEventType.ENTITY_CREATED.name(),
                List.of(listener),
                (some, more) -> Stream.concat(some.stream(), more.stream()).toList());
        configuration.setTypedEventListeners(listeners);
    }

    @Override
    public boolean isFireOnTransactionLifecycleEvent() {
        return true;
    }

    @Override
    public String getOnTransaction() {
        return TransactionState.COMMITTED.name();
    }

    @Override
    public void onEvent(FlowableEvent event) {
        if (!(event instanceof FlowableEntityEvent created)) {
            return;
        }
        if (created.getEntity() instanceof JobEntity job) {
            // A locked job belongs to the engine's own executor. Other engines of Flowable share
            // the tables; Jobwire runs the jobs of processes.
            if (job.getLockOwner() == null && isOfProcess(job.getScopeType())) {
                hints.ready(job.getId(), job.getProcessInstanceId());
            }
        } else if (created.getEntity() instanceof TimerJobEntity timer) {
            if (timer.getDuedate() != null && isOfProcess(timer.getScopeType())) {
                hints.timer(timer.getDuedate());
            }
        }
    }

    private static boolean isOfProcess(String scope) {
        return scope == null || scope.equals("bpmn");
    }

    @Override
    public boolean isFailOnException() {
        return false;
    }
}
