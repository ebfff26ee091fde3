//! What nodes tell the bench, over a loopback connection: 13 bytes each, big-endian. One byte says what, four
//! say which job, eight say when in microseconds (or how many).

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// One thing that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// This job started.
    Started { n: u32, at: i64 },
    /// This job's handler came to its end.
    Ended { n: u32, at: i64 },
    /// The node stops; its sweeper hinted so many jobs.
    Swept { jobs: i64 },
}

const STARTED: u8 = 1;
const ENDED: u8 = 2;
const SWEPT: u8 = 3;

impl Told {
    pub(super) async fn write(self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        let (what, n, number) = match self {
            Self::Started { n, at } => (STARTED, n, at),
            Self::Ended { n, at } => (ENDED, n, at),
            Self::Swept { jobs } => (SWEPT, 0, jobs),
        };
        stream.write_u8(what).await?;
        stream.write_u32(n).await?;
        stream.write_i64(number).await
    }

    /// The next one; `None` at the end.
    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<Self>> {
        let what = match stream.read_u8().await {
            Ok(what) => what,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        let (n, number) = (stream.read_u32().await?, stream.read_i64().await?);
        match what {
            STARTED => Ok(Some(Self::Started { n, at: number })),
            ENDED => Ok(Some(Self::Ended { n, at: number })),
            SWEPT => Ok(Some(Self::Swept { jobs: number })),
            other => Err(Error::new(
                ErrorKind::InvalidData,
                format!("{other} is nothing that a node tells"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_is_read_and_what_is_cut_or_strange_is_an_error() {
        let told = [
            Told::Started { n: 7, at: -1 },
            Told::Ended {
                n: u32::MAX,
                at: i64::MAX,
            },
            Told::Swept { jobs: 3 },
        ];
        let mut wire = Vec::new();
        for one in told {
            one.write(&mut wire).await.unwrap();
        }
        assert_eq!(wire.len(), 3 * 13);
        let mut stream = wire.as_slice();
        for one in told {
            assert_eq!(Told::read(&mut stream).await.unwrap(), Some(one));
        }
        assert_eq!(Told::read(&mut stream).await.unwrap(), None);
        let cut = Told::read(&mut [STARTED, 0, 0].as_slice()).await;
        assert_eq!(cut.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let strange = Told::read(&mut [9; 13].as_slice()).await;
        assert_eq!(strange.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
