// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/spool"
)

// runOptions are the flags of run.
type runOptions struct {
	policy, listen, cgroup, bpffs, runDir string
	noPin, nested                         bool
	// netns are the paths of the namespaces to act in; none means all.
	netns []string
	// scanEvery is the time between two checks of the coverage.
	scanEvery time.Duration
	// lines are where the log goes; nil where that is not asynchronous.
	lines *spool.Writer
}

// flushWithin is how long the end waits for a stderr that is stuck.
const flushWithin = 2 * time.Second

// runText is what help says of run.
const runText = `Run the agent in the foreground until SIGTERM or SIGINT: put the policy into the
kernel, bound every connection that opens from now on in the cgroup and below,
hear reports on report.sock, judge, and close what is dead. The log goes to
stderr, one line for each verdict.

The policy file is read again when it changes, on SIGHUP, and when "sockhealth
reload" asks. A bad one is refused whole and the policy in force stays. The new one
is in force at once for connections that open from then on.

The BPF programs are pinned below --bpffs and stay when the agent ends: connections
are bounded on, by the policy in force then, whether or not an agent runs. The next
start takes over from them without a moment in which a connection is missed.
"sockhealth detach" removes them. With --no-pin they are gone when the agent ends.
Connections that are open keep the options that they have either way.

It needs root, or the capabilities CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN,
CAP_NET_RAW, CAP_SYS_ADMIN and CAP_SYS_PTRACE; Linux 5.10 with BTF; cgroup v2.
With a --cgroup below the root of the hierarchy it also moves a process of its own
there, to see that connections are bounded: that takes root or CAP_DAC_OVERRIDE.`

func newRun(e *env) *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:         "run",
		Annotations: map[string]string{hangupReloads: ""},
		Short:       "Run the agent",
		Long:        runText,
		Example: `  sudo sockhealth run
  sudo sockhealth run --policy policy.yaml --listen 127.0.0.1:0 --log-level debug
  sudo sockhealth run --cgroup /sys/fs/cgroup/app.slice --netns /run/netns/app`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.policy, "policy", defaultPolicy, "policy `FILE`")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9757", "`ADDR:PORT` of the metrics; port 0 takes a free one, which the log names")
	f.StringVar(&o.cgroup, "cgroup", "", "cgroup v2 `PATH` whose sockets are bounded (default the root of the hierarchy)")
	netns := f.String("netns", "all", "network namespaces to hear reports from and to act in: all, or `PATH,...`")
	f.StringVar(&o.bpffs, "bpffs", loader.DefaultPins, "`DIR` on bpffs where the programs are pinned")
	f.BoolVar(&o.noPin, "no-pin", false, "pin nothing: without the agent nothing is bounded")
	f.BoolVar(&o.nested, "nested", false, "work on a cgroup below another agent's, with --no-pin: what both policies name is bounded by both")
	f.DurationVar(&o.scanEvery, "scan-interval", coverage.Interval, "`TIME` between two checks of which connections are bounded")
	f.StringVar(&o.runDir, "run-dir", defaultRunDir, "`DIR` of report.sock, admin.sock and the lock")
	format := &choice{value: "text", of: []string{"text", asJSON}}
	f.Var(format, "log-format", "format of the log")
	complete(cmd, "log-format", format.of)
	level := &choice{value: "info", of: []string{"debug", "info", "warn", "error"}}
	f.Var(level, "log-level", "least level that is logged")
	complete(cmd, "log-level", level.of)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.netns, err = netnsPaths(*netns); err != nil {
			return err
		}
		if o.scanEvery <= 0 {
			return usagef("--scan-interval %s: want a time above 0 such as 5m", o.scanEvery)
		}
		if _, _, err := net.SplitHostPort(o.listen); err != nil {
			return usagef("--listen %q: want ADDR:PORT such as 127.0.0.1:9757", o.listen)
		}
		if o.nested && !o.noPin {
			return usagef("--nested: needs --no-pin, too")
		}
		// Nothing may wait for the log, nor the end for what is said then.
		o.lines = spool.New(e.stderr)
		e.stderr, e.flush = o.lines, func() { o.lines.Close(flushWithin) }
		return o.run(cmd.Context(), newLogger(e.stderr, format.value, level.value))
	}
	return cmd
}

// netnsPaths reads --netns; all gives none.
func netnsPaths(value string) ([]string, error) {
	if value == "all" {
		return nil, nil
	}
	paths := strings.Split(value, ",")
	for _, p := range paths {
		if p == "" || p == "all" {
			return nil, usagef("--netns %q: want all, or paths such as /run/netns/app with commas between", value)
		}
	}
	return paths, nil
}

// run runs the agent until ctx ends.
func (o *runOptions) run(ctx context.Context, log *slog.Logger) error {
	// Under nohup(1), too: nothing else is meant by it here.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	s, err := start(o, log)
	if err != nil {
		return err
	}
	log.Info("ready",
		"version", thisBuild().Version, "policy", o.policy, "revision", s.reloader.Status().Revision,
		"cgroup", s.cgroup, "pins", s.pinned(), "netns", strings.Join(s.names(), ","),
		"listen", s.listener.Addr().String(), "run_dir", o.runDir)
	err = s.wait(ctx, hangup)
	log.Info("stopping")
	return errors.Join(err, s.stop())
}

// newLogger returns the agent's log. The words are checked already.
func newLogger(w io.Writer, format, level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		panic(err) // the flag has a closed list
	}
	opts := &slog.HandlerOptions{Level: l, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // JSON would have nanoseconds
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}}
	if format == asJSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
