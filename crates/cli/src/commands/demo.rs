//! `jobwire demo`: shows the program at work, and checks an account of it against the database.

use crate::demo;
use crate::error::Error;
use crate::settings::Settings;

pub use crate::demo::DemoArgs;

pub(crate) async fn run(settings: Settings, args: DemoArgs) -> Result<(), Error> {
    demo::run(settings, args).await
}
