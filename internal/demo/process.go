// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// How long a process may take to be ready, and to end after SIGTERM.
const (
	readyTimeout = 20 * time.Second
	stopTimeout  = 5 * time.Second
)

// command is a process to start: this binary with other arguments.
type command struct {
	name   string // for messages: "client of no agent"
	args   []string
	ns     *netns.NS    // nil: the demo's own
	cgroup *lab.Cgroup  // nil: the demo's own
	line   func([]byte) // gets each line of its standard output; nil: log it
	// survive lets it outlive the demo.
	survive bool
}

// process is one that was started.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	log  *tail         // what it said on standard error
	done chan struct{} // closed when it has ended, after err was set
	err  error
}

// spawner starts processes. The kernel kills them when the thread that started
// them ends (PR_SET_PDEATHSIG), so it keeps one thread to itself until close.
type spawner struct {
	exe  string
	jobs chan func()
}

func newSpawner(exe string) *spawner {
	s := &spawner{exe: exe, jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for job := range s.jobs {
			job()
		}
		runtime.UnlockOSThread() // an end under lock would end the thread
	}()
	return s
}

// close is for after the last process has ended.
func (s *spawner) close() { close(s.jobs) }

// start starts a process and returns while it runs.
func (s *spawner) start(c command) (*process, error) {
	p := &process{name: c.name, log: &tail{}, done: make(chan struct{})}
	p.cmd = s.command(c, p.log)
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	started := make(chan error)
	s.jobs <- func() {
		if c.ns == nil {
			started <- p.cmd.Start()
			return
		}
		started <- c.ns.Do(p.cmd.Start)
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, errors.Join(err, p.in.Close()))
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (s *spawner) command(c command, log *tail) *exec.Cmd {
	cmd := exec.Command(s.exe, c.args...)
	cmd.Args[0] = "sockhealth"
	cmd.Env = []string{} // the demo's surroundings are no part of the play
	cmd.Stdout, cmd.Stderr = log, log
	if c.line != nil {
		cmd.Stdout = &lines{fn: c.line}
	}
	cmd.WaitDelay = stopTimeout
	// A group of its own, so that an interrupt from the terminal reaches the
	// demo alone, which then ends the others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !c.survive {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if c.cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = c.cgroup.FD()
	}
	return cmd
}

// wait returns when the process has ended or the time is up.
func (p *process) wait(timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// stop asks the process to end and returns when it has. One that is paused goes
// on to hear of it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error says that it has ended
	_ = p.goOn()
	if !p.wait(stopTimeout) {
		p.kill()
	}
}

// kill ends the process and returns when it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// ended is the error of a process that ended by itself. It shows the last line
// that the process said, unless a signal cut it short.
func (p *process) ended() error {
	why := p.err
	if why == nil {
		why = errors.New("exit status 0")
	}
	if last := lastLine(p.log.String()); last != "" && p.cmd.ProcessState.Exited() {
		return fmt.Errorf("%s ended: %w: %s", p.name, why, last)
	}
	return fmt.Errorf("%s ended: %w", p.name, why)
}

// hasEnded reports whether the process has ended.
func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// await returns when ready is closed, or the error of the process that ended
// before, or ctx's.
func (p *process) await(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-p.done:
		return p.ended()
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.name, context.Cause(ctx))
	}
}

func lastLine(text string) string {
	all := bytes.TrimRight([]byte(text), "\n")
	return string(all[bytes.LastIndexByte(all, '\n')+1:])
}
