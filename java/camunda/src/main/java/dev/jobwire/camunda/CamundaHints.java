package dev.jobwire.camunda;

import dev.jobwire.hints.HintPublisher;
import org.camunda.bpm.engine.impl.cfg.AbstractProcessEnginePlugin;
import org.camunda.bpm.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.camunda.bpm.engine.impl.interceptor.Session;
import org.camunda.bpm.engine.impl.interceptor.SessionFactory;
import org.camunda.bpm.engine.impl.persistence.entity.JobManager;

/**
 * Publishes the hints of Camunda's jobs when the transaction that created them has committed, at
 * any history level. A plugin of the process engine. The executor of the engine is off ({@code
 * camunda.bpm.job-execution.enabled = false} on Spring Boot, {@code jobExecutorActivate = false}
 * elsewhere).
 *
 * <pre>{@code
 * configuration.getProcessEnginePlugins().add(new CamundaHints(HintPublisher.start(settings)));
 * ProcessEngine engine = configuration.buildProcessEngine();
 * }</pre>
 *
 * <p>It sees new jobs. Camunda changes jobs in place when they are activated, get new attempts or
 * another due date; the leader finds those in its next cycle.
 */
public final class CamundaHints extends AbstractProcessEnginePlugin {
    /** The lane of the hints, unless the nodes have another {@code engine_lane}. */
    public static final String LANE = "camunda";

    private final HintPublisher hints;

    /** Hints are published here. */
    public CamundaHints(HintPublisher hints) {
        this.hints = hints;
    }

    /** Replaces the engine's manager of jobs. */
    @Override
    public void postInit(ProcessEngineConfigurationImpl configuration) {
        configuration.getSessionFactories().put(JobManager.class, new SessionFactory() {
            @Override
            public Class<?> getSessionType() {
                return JobManager.class;
            }

            @Override
            public Session openSession() {
                return new HintingJobManager(hints);
            }
        });
    }
}
