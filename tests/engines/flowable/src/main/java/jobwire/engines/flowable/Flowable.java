package jobwire.engines.flowable;

import java.util.List;
import java.util.Map;
import jobwire.engines.Engine;
import jobwire.engines.Processes;
import org.flowable.engine.ProcessEngine;
import org.flowable.engine.RuntimeService;
import org.flowable.task.api.Task;

/** Flowable, as the requests of tests see it. */
public final class Flowable implements Engine {
    private final ProcessEngine engine;
    private final RuntimeService runtime;

    /** The requests of tests reach this engine. */
    public Flowable(ProcessEngine engine) {
        this.engine = engine;
        this.runtime = engine.getRuntimeService();
    }

    @Override
    public String name() {
        // Not ProcessEngine.VERSION: the compiler takes that of Flowable 7.
        return "Flowable " + engine.getManagementService().getProperties().get("schema.version");
    }

    @Override
    public void deploy(String process) {
        engine.getRepositoryService().createDeployment()
                .name(process)
                .addString(Processes.resource(process), Processes.text(process))
                .enableDuplicateFiltering()
                .deploy();
    }

    @Override
    public String start(String process, Map<String, Object> variables) {
        return runtime.startProcessInstanceByKey(process, variables).getId();
    }

    @Override
    public int completeTasks(String instance) {
        List<Task> tasks =
                engine.getTaskService().createTaskQuery().processInstanceId(instance).list();
        tasks.forEach(task -> engine.getTaskService().complete(task.getId()));
        return tasks.size();
    }

    @Override
    public void suspend(String instance) {
        runtime.suspendProcessInstanceById(instance);
    }

    @Override
    public void activate(String instance) {
        runtime.activateProcessInstanceById(instance);
    }
}
