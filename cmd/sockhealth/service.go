// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sockhealth/sockhealth/internal/adopt"
	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/container/census"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/guard"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/metrics"
	"github.com/sockhealth/sockhealth/internal/netns/paths"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/reload"
	"github.com/sockhealth/sockhealth/internal/silence"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// grace is how long requests under way may take to end at a stop.
const grace = 5 * time.Second

// service is a running agent with everything around it.
type service struct {
	opts *runOptions
	log  *slog.Logger
	// started and everything below is settled when start returns.
	started  time.Time
	runDir   *api.RunDir
	pins     *loader.Pins // nil with --no-pin
	reloader *reload.Reloader
	watch    *reload.Watch // of the policy file
	programs *loader.Programs
	cgroup   string
	paths    *paths.Paths // of --netns; nil means all
	spaces   adopt.Namespaces
	census   *census.Census     // nil where the hierarchy of cgroups is out of sight
	registry *registry.Registry // nil with --netns
	adopter  atomic.Pointer[adopt.Adopter]
	guard    atomic.Pointer[guard.Guard]
	checker  atomic.Pointer[coverage.Scanner]
	silence  atomic.Pointer[silence.Watcher]
	agent    *agent.Agent
	ends     []*endpoint
	metrics  *metrics.Metrics
	listener net.Listener
	reports  *api.Server // of report.sock

	undo   []func() error // how to stop what was started, in that order
	work   sync.WaitGroup // goroutines of serve
	failed chan error     // from one of them, before the stop
}

// start starts everything, in the order that leaves no gap: no socket sees a
// program without a policy, nobody can report before the agent is there, and
// the kernel is not touched unless this agent holds the run directory and has its
// port. After an error nothing stays, and the policy of the agent before it is in force.
func start(o *runOptions, log *slog.Logger) (_ *service, err error) {
	s := &service{opts: o, log: log, started: time.Now(), failed: make(chan error, 1)}
	s.reloader = reload.New(o.policy, s.putInForce, log)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.abandon(), s.stop())
		}
	}()
	// A mistake in the file is told before anything that needs a privilege.
	if _, err := policy.Load(o.policy); err != nil {
		return nil, remedied(err, noPolicyRemedy)
	}
	if err := loader.Require(); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		s.openRunDir, s.openNamespaces, s.lock, s.listen, s.loadPrograms, s.startNamespaces, s.startCensus, s.startAgent,
		s.newEndpoints, s.startMetrics, s.startAPI, s.startEndpoints, s.startReload, s.startBeat, s.startAdopter, s.startGuard, s.startSilence, s.startCoverage,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s, s.programs.Settle()
}

// onStop says how to stop what was just started.
func (s *service) onStop(fn func() error) { s.undo = append(s.undo, fn) }

// stop stops what was started, in reverse order. Each waits for its own.
func (s *service) stop() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	s.work.Wait()
	return errors.Join(errs...)
}

// wait returns nil when ctx ends, or the error of what could not go on. Each
// hangup reads the policy file again.
func (s *service) wait(ctx context.Context, hangup <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return err
		case <-hangup:
			_ = s.reloader.Reload("SIGHUP") // logged there
		}
	}
}

// serve runs fn in a goroutine; its error ends the service.
func (s *service) serve(fn func() error) {
	s.work.Go(func() {
		if err := fn(); err != nil {
			select {
			case s.failed <- err:
			default: // one is enough
			}
		}
	})
}

func (s *service) openRunDir() (err error) {
	if s.runDir, err = api.OpenRunDir(s.opts.runDir); err != nil {
		return remedied(err, noRunDirRemedy)
	}
	s.onStop(s.runDir.Close)
	return nil
}

// openNamespaces holds those of --netns open, so that their inode numbers stay
// theirs.
func (s *service) openNamespaces() (err error) {
	if len(s.opts.netns) == 0 {
		return nil
	}
	if s.paths, err = paths.Open(s.opts.netns); err != nil {
		return remedied(err, noNetnsRemedy)
	}
	s.onStop(s.paths.Close)
	return nil
}

// putInForce hands a policy to the programs.
func (s *service) putInForce(p *policy.Policy) error {
	if err := s.programs.SetPolicy(p); err != nil {
		return err
	}
	if text := uncapped(s.programs.InForce()); text != "" {
		s.log.Warn(text)
	}
	if a := s.adopter.Load(); a != nil {
		a.Wake()
	}
	if c := s.checker.Load(); c != nil {
		c.Wake()
	}
	if w := s.silence.Load(); w != nil {
		w.Wake()
	}
	return nil
}

// startReload follows the policy file.
func (s *service) startReload() error {
	s.follow(s.watch.Run)
	return nil
}

// startAgent starts the agent and lets it follow the kernel's events.
func (s *service) startAgent() error {
	apps := prober.NewApps(thisBuild().Version)
	s.onStop(func() error { // after the agent
		apps.Close()
		return nil
	})
	s.agent = agent.New(agent.Config{
		Kernel:     s.programs,
		Sockets:    sockets.New(s.programs),
		Prober:     prober.New(),
		Apps:       apps,
		Log:        s.log,
		Containers: s.containers(),
		Seen:       s.seen(),
		Covers:     s.covers(),
		Namespaces: s.spaces,
		Now:        conn.Now,
		Boot:       conn.Boot,
		CPU:        conn.ThreadCPU,
	})
	s.onStop(func() error {
		s.agent.Close()
		return nil
	})
	events, err := s.programs.Events()
	if err != nil {
		return err
	}
	followed := make(chan struct{})
	s.onStop(func() error {
		err := events.Close()
		<-followed
		return err
	})
	s.serve(func() error {
		defer close(followed)
		return s.agent.Follow(events)
	})
	return nil
}

// listen takes the port of the metrics, before the programs are touched: it is what most
// often belongs to somebody else. Who connects waits for startMetrics.
func (s *service) listen() (err error) {
	if s.listener, err = net.Listen("tcp", s.opts.listen); err != nil {
		return fmt.Errorf("listen for metrics: %w [choose another --listen]", err)
	}
	s.onStop(func() error {
		_ = s.listener.Close() // its server may have closed it already
		return nil
	})
	return nil
}

// startMetrics serves the metrics.
func (s *service) startMetrics() error {
	b := thisBuild()
	s.metrics = metrics.New(metrics.Config{
		Agent: s.agent, Kernel: s.programs, Policy: s, Coverage: s, Silence: s, Health: s, API: s, Log: s, Reports: s,
		Version: b.Version, Revision: b.Commit,
	})
	s.agent.Observe(s.metrics.ObserveVerdict)
	server := s.metrics.Server(s.ready, s.log)
	s.onStop(func() error { return s.shutdown(server.Shutdown) })
	s.serve(func() error {
		if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics: %w", err)
		}
		return nil
	})
	return nil
}

// shutdown ends a server, with some time for the requests under way. Those that take
// longer end with this process, which is no failure of the stop.
func (s *service) shutdown(fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := fn(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests under way are cut off", "after_ms", grace.Milliseconds(), "error", err)
		return nil
	}
	return err
}

// ready reports whether connections are bounded and reports are heard now.
func (s *service) ready() error {
	if err := s.attached(); err != nil {
		return err
	}
	return errors.Join(s.unreachable()...)
}

// attached reports whether connections are bounded now.
func (s *service) attached() error {
	attached, err := s.programs.Attached()
	if err == nil && len(attached) < loader.Attachments {
		err = errDetached
	}
	return err
}

// errDetached says that the programs were attached and are so no more.
var errDetached = errors.New("the programs are off their cgroup, nothing is bounded [was it removed? restart the agent]")

// LastReload implements metrics.Policy.
func (s *service) LastReload() (ok bool, loaded time.Time) {
	status := s.reloader.Status()
	return status.OK, status.Taken
}

// Reports implements metrics.Reports.
func (s *service) Reports() api.Stats { return s.reports.Stats() }

// LogDropped implements metrics.Log.
func (s *service) LogDropped() uint64 {
	if s.opts.lines == nil {
		return 0
	}
	return s.opts.lines.Dropped()
}

// covers tells the agent which namespaces it acts in; nil means all.
func (s *service) covers() func(inode uint32) bool {
	if s.paths == nil {
		return nil
	}
	return s.paths.Covers
}

// names of the namespaces, as --netns has them.
func (s *service) names() []string {
	if len(s.opts.netns) == 0 {
		return []string{"all"}
	}
	return s.opts.netns
}
