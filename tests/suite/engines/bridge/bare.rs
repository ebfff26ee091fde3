//! The bridge on the tables of an engine. An application of the test takes the place of the engine:
//! for answers that a real engine seldom gives, and for TLS. No JVM runs.

mod application;
mod cases;
mod categories;
mod doctor;
mod late;
mod lengths;
mod looks;
mod pages;
mod refused;
mod release;
mod rescue;
mod tables;
mod timers;
mod tls;
mod token;
mod traceless;
