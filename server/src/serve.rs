//! Putting a server together, and its life from the first log line to the last.

use std::{
    future::Future,
    io::{IsTerminal as _, Write as _},
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tilesim_proto::v1::{
    machines_server::MachinesServer, server_server::ServerServer,
    simulation_server::SimulationServer, traces_server::TracesServer,
};
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tonic::{service::Routes, transport::server::TcpIncoming};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    catalog::Catalog,
    config::{Config, ServeArgs},
    error::{Kind, ServiceError},
    guard::GuardLayer,
    runner::{Runner, RunnerConfig},
    services::Services,
    store::Store,
};

/// Memory that uploads may hold together, in KiB.
const UPLOAD_KIB: usize = 512 << 10;
/// Memory for results, in bytes.
const RESULT_MEMORY: u64 = 256 << 20;
/// How long the last answers have to leave once everything has been stopped.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long a drain waits for streams that ask for nothing.
const QUIET: Duration = Duration::from_secs(2);

/// What the services work with.
pub struct App {
    /// Settings.
    pub config: Config,
    /// Traces and machines.
    pub catalog: Arc<Catalog>,
    /// Worker threads.
    pub runner: Runner,
    /// The store.
    pub store: Arc<Store>,
    /// When the server started.
    pub started: Instant,
    draining: AtomicBool,
    uploads: Arc<Semaphore>,
}

impl App {
    /// Opens the store and starts the worker threads.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        let store = Store::open(&config.store, config.limits.tenant_bytes, config.results)
            .with_context(|| format!("cannot open the store {}", config.store.display()))?;
        let store = Arc::new(store);
        let runner_config = RunnerConfig {
            workers: config.workers,
            queue: config.queue,
            memory_bytes: RESULT_MEMORY,
        };
        Ok(Self {
            catalog: Arc::new(Catalog::new(Some(Arc::clone(&store)))),
            runner: Runner::start(&runner_config, Some(Arc::clone(&store)))
                .context("cannot start the worker threads")?,
            store,
            started: Instant::now(),
            draining: AtomicBool::new(false),
            uploads: Arc::new(Semaphore::new(UPLOAD_KIB)),
            config,
        })
    }

    /// The server takes no new work.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Takes the memory for an upload of `bytes`.
    pub fn upload_share(&self, bytes: u64) -> Result<OwnedSemaphorePermit, ServiceError> {
        let limit = self.config.limits.trace_bytes;
        if bytes > limit {
            return Err(ServiceError::invalid(
                "trace.too_large",
                "header.size_bytes",
                format!("{bytes} bytes are more than the limit of {limit}"),
            )
            .hint("fold repeated work into loops, or run a server with a higher limit"));
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        Arc::clone(&self.uploads)
            .try_acquire_many_owned(kib)
            .map_err(|_| {
                ServiceError::new(
                    Kind::Exhausted,
                    "server.uploads_full",
                    "",
                    "too many uploads are under way",
                )
                .hint("try again in a second")
                .retry_after(Duration::from_secs(1))
            })
    }
}

/// A server that listens but does not serve yet.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
}

/// Builds a [`Server`].
pub struct ServerBuilder {
    config: Config,
}

impl ServerBuilder {
    /// Opens the store, starts the worker threads, and listens.
    pub async fn bind(self) -> anyhow::Result<Server> {
        let listen = self.config.listen;
        let app = Arc::new(App::start(self.config)?);
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}"))?;
        let address = listener
            .local_addr()
            .context("cannot read the address listened on")?;
        if let Some(path) = &app.config.port_file {
            write_port_file(path, address.port())
                .with_context(|| format!("cannot write the port file {}", path.display()))?;
        }
        Ok(Server {
            app,
            listener,
            address,
        })
    }
}

impl Server {
    /// A server with these settings.
    pub fn builder(config: Config) -> ServerBuilder {
        ServerBuilder { config }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then drains: no new work, what runs may end within the drain limit,
    /// what still runs then is stopped.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { app, listener, .. } = self;
        let (health, health_service) = tonic_health::server::health_reporter();
        set_health(&health, ServingStatus::Serving).await;
        let routes = routes(&app)?.add_service(health_service);
        let (begin_drain, drain_began) = tokio::sync::oneshot::channel::<()>();
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(30)))
            .http2_keepalive_timeout(Some(Duration::from_secs(20)))
            .max_concurrent_streams(Some(1024))
            .layer(GuardLayer)
            .add_routes(routes)
            .serve_with_incoming_shutdown(
                TcpIncoming::from(listener).with_nodelay(Some(true)),
                async {
                    // An error means that the sender is gone, which is a stop as well.
                    let _ = drain_began.await;
                },
            );
        tokio::pin!(serving);
        tokio::select! {
            ended = &mut serving => return ended.context("the server failed"),
            () = stop => {}
        }
        let drain = app.config.drain;
        tracing::info!(running = app.runner.running(), queued = app.runner.queued(), limit = ?drain, "draining");
        app.draining.store(true, Ordering::Relaxed);
        set_health(&health, ServingStatus::NotServing).await;
        let _ = begin_drain.send(());
        tokio::select! {
            ended = &mut serving => ended.context("the server failed while it drained")?,
            () = quiet(&app) => tracing::info!("closing idle connections"),
            () = tokio::time::sleep(drain) => {
                tracing::warn!("the drain limit has passed; stopping what still runs");
                app.runner.stop();
                // What was stopped still says so to whoever waits for it.
                let _ = tokio::time::timeout(FAREWELL, &mut serving).await;
            }
        }
        let store = Arc::clone(&app.store);
        tokio::task::spawn_blocking(move || store.flush())
            .await
            .context("flushing the store")?;
        Ok(())
    }
}

/// Resolves once no simulation has run or waited for a while: what is left are clients that keep a
/// stream open without asking for anything, such as watchers of the health service.
async fn quiet(app: &App) {
    let mut since = Instant::now();
    while since.elapsed() < QUIET {
        tokio::time::sleep(QUIET / 20).await;
        if app.runner.running() + app.runner.queued() > 0 {
            since = Instant::now();
        }
    }
}

fn routes(app: &Arc<App>) -> anyhow::Result<Routes> {
    let services = Services {
        app: Arc::clone(app),
    };
    let limit = app.config.limits.message_bytes;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tilesim_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::default()
        .add_service(TracesServer::new(services.clone()).max_decoding_message_size(limit))
        .add_service(MachinesServer::new(services.clone()).max_decoding_message_size(limit))
        .add_service(SimulationServer::new(services.clone()).max_decoding_message_size(limit))
        .add_service(ServerServer::new(services).max_decoding_message_size(limit))
        // Clients still ask for either version.
        .add_service(reflection().build_v1().context("reflection v1")?)
        .add_service(reflection().build_v1alpha().context("reflection v1alpha")?))
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    let services = [
        "",
        "tilesim.v1.Traces",
        "tilesim.v1.Machines",
        "tilesim.v1.Simulation",
        "tilesim.v1.Server",
    ];
    for service in services {
        health.set_service_status(service, status).await;
    }
}

/// Writes the port so that whoever waits for the file never reads half of it.
fn write_port_file(path: &Path, port: u16) -> anyhow::Result<()> {
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(file, "{port}")?;
    file.persist(path)?;
    Ok(())
}

/// The life of a server process: logs, settings, listening, serving, draining.
pub fn main(args: ServeArgs) -> anyhow::Result<()> {
    start_logging(&args)?;
    let stop_with_stdin = args.stop_with_stdin;
    let config = Config::try_from(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("tilesim-async")
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(async {
        let stop = stop_signal(stop_with_stdin)?;
        let server = Server::builder(config).bind().await?;
        tracing::info!(address = %server.address(), store = %server.app.config.store.display(),
            workers = server.app.config.workers, "listening");
        server.serve(stop).await?;
        tracing::info!("stopped");
        Ok(())
    })
}

fn start_logging(args: &ServeArgs) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log)
        .with_context(|| format!("--log: `{}` is not a log filter", args.log))?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let started = if args.log_json {
        logs.json().try_init()
    } else {
        logs.try_init()
    };
    started.map_err(|e| anyhow::anyhow!("cannot start logging: {e}"))
}

/// Resolves at the first SIGTERM or SIGINT, or at the end of standard input. A second signal ends
/// the process at once.
fn stop_signal(with_stdin: bool) -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let (stdin_ended, mut stdin_end) = tokio::sync::mpsc::channel(1);
    if with_stdin {
        // A thread of its own: a read of standard input cannot be cancelled.
        std::thread::spawn(move || {
            // Whatever ends the reading, the parent is gone.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = stdin_ended.blocking_send(());
        });
    }
    Ok(async move {
        let why = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            Some(()) = stdin_end.recv() => "end of input",
        };
        tracing::info!(why, "asked to stop");
        if with_stdin {
            // The parent signals and closes the input at once, and sees to the rest itself.
            return;
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::warn!("asked to stop again; stopping at once");
            std::process::exit(1);
        });
    })
}
