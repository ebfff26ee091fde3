package dev.jobwire.camunda;

import dev.jobwire.hints.HintPublisher;
import org.camunda.bpm.engine.impl.cfg.AbstractProcessEnginePlugin;
import org.camunda.bpm.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.camunda.bpm.engine.impl.interceptor.Session;
import org.camunda.bpm.engine.impl.interceptor.SessionFactory;
import org.camunda.bpm.engine.impl.persistence.entity.JobManager;

/**
 * Publishes the hints of Camunda's jobs after the commit of the transaction that created them, at
 * any history level. This class is a plugin of the process engine. The executor of the engine must
 * be off ({@code camunda.bpm.job-execution.enabled = false} on Spring Boot, {@code
 * jobExecutorActivate = false} elsewhere).
 *
 * <pre>{@code
 * configuration.getProcessEnginePlugins().add(new CamundaHints(HintPublisher.start(settings)));
 * ProcessEngine engine = configuration.buildProcessEngine();
 * }</pre>
 *
 * <p>Only new jobs get a hint here. Camunda changes a job in place when it activates the job or
 * gives it new attempts or another due date. The leader finds such a job in its next cycle.
 */
public final class CamundaHints extends AbstractProcessEnginePlugin {
    /** The lane of the hints, unless the nodes have another {@code engine_lane}. */
    public static final String LANE = "camunda";

    private final HintPublisher hints;

    /** Creates the plugin. The publisher sends its hints. */
    public CamundaHints(HintPublisher hints) {
        this.hints = hints;
    }

    /** Replaces the engine's job manager. */
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
