-- The triggers go with their functions.
DROP FUNCTION jobwire.switch_events;
DROP FUNCTION jobwire.tell_added, jobwire.tell_removed, jobwire.tell_changed, jobwire.tell_leased CASCADE;
DROP FUNCTION jobwire.event_cause;
DROP TABLE jobwire.event;
DROP TABLE jobwire.event_stream;
DELETE FROM jobwire.schema_version WHERE version = 12;
