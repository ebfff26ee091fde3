package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

class SweepTest {
    private static String orphans(Columns columns) {
        RecordingDatabase database = new RecordingDatabase();
        new Sweep(database.tables(columns)).orphans(null, null, 10);
        List<String> searches = database.statements.stream()
                .filter(sql -> sql.contains("NOT EXISTS"))
                .toList();
        assertEquals(1, searches.size(), database.statements.toString());
        return searches.get(0);
    }

    /** No node may run the elder one, and the younger one is ready. */
    @Test
    void anElderJobOfAnotherCategoryHidesNoJob() {
        String ofFlowable = orphans(Columns.ofFlowable());
        assertTrue(ofFlowable.contains("s.CATEGORY_ = j.CATEGORY_"), ofFlowable);
        for (Columns without : List.of(Columns.ofActiviti(), Columns.ofCamunda())) {
            String orphans = orphans(without);
            assertTrue(!orphans.contains("s.CATEGORY_") && orphans.contains("s.ID_"), orphans);
        }
    }
}
