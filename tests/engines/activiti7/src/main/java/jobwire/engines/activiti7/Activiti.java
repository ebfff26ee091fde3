package jobwire.engines.activiti7;

import java.util.List;
import java.util.Map;
import jobwire.engines.Engine;
import jobwire.engines.Processes;
import org.activiti.engine.ProcessEngine;
import org.activiti.engine.RuntimeService;
import org.activiti.engine.task.Task;

/** Activiti, as the requests of tests see it. */
final class Activiti implements Engine {
    private final ProcessEngine engine;
    private final RuntimeService runtime;

    Activiti(ProcessEngine engine) {
        this.engine = engine;
        this.runtime = engine.getRuntimeService();
    }

    @Override
    public String name() {
        return "Activiti " + ProcessEngine.VERSION;
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
