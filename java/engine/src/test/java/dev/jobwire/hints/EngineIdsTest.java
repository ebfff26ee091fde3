package dev.jobwire.hints;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import org.junit.jupiter.api.Test;

/** Compares UUIDs with those of the nodes, in crates/engines/src/id.rs. */
class EngineIdsTest {
    @Test
    void knownIdsBecomeTheUuidsOfTheNodes() {
        Map<String, String> known = Map.of(
                "0198c0de-7777-7000-8000-000000000001", "0198c0de-7777-7000-8000-000000000001",
                "JOB-0198c0de-7777-7000-8000-000000000001",
                "0198c0de-7777-f000-8000-000000000001",
                "JOB-2d1f1a8e-c9f3-11f0-8de9-0242ac120002", "2d1f1a8e-c9f3-91f0-8de9-0242ac120002",
                "17", "4a4f4257-4900-8000-8000-000000000011",
                "0", "4a4f4257-4900-8000-8000-000000000000",
                "JOB-17", "4a4f4257-4900-8001-8000-000000000011",
                "4611686018427387903", "4a4f4257-4900-8000-bfff-ffffffffffff");
        known.forEach((id, uuid) ->
                assertEquals(Optional.of(UUID.fromString(uuid)), EngineIds.uuid(id), id));
    }

    @Test
    void idsOfOtherGeneratorsAreRefused() {
        String[] unknown = {
            "", "JOB-", "-1", "+1", "007", "4611686018427387904", "9999999999999999999",
            "99999999999999999999", "PRC-0198c0de-7777-7000-8000-000000000001",
            "0198C0DE-7777-7000-8000-000000000001", "0198c0de77777000800000000000000001",
            "0198c0de-7777-8000-8000-000000000001", "0198c0de-7777-0000-8000-000000000001",
            "1-1-1000-1-1", "order-17"
        };
        for (String id : unknown) {
            assertTrue(EngineIds.uuid(id).isEmpty(), id);
        }
        assertTrue(EngineIds.uuid(null).isEmpty());
    }
}
