DROP TABLE jobwire_engine.node;
DROP TABLE jobwire_engine.leader;
DROP SEQUENCE jobwire_engine.fence;
DROP TABLE jobwire_engine.schema_version;
