// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// matrix runs every privileged test, doctor and the demo under several kernels.
type matrix struct {
	folders *folders
	out     io.Writer
	top     string // the module's folder
	results string // a file for each kernel is written here
	run     string // only tests that match; "" for all
	beside  bool   // doctor, demo and variants beside what run chooses, as beside all
	timeout time.Duration
	atOnce  int

	// What was found before the machines run.
	packages []string            // those whose tests can reach the kernel
	tests    map[string][]string // the names of their tests
	version  string              // of what is tested, "" where nobody knows
}

func newMatrix(f *folders) *cobra.Command {
	m := &matrix{folders: f}
	var names []string
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Run every privileged test, doctor and the demo under several kernels",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			m.out = &locked{w: cmd.OutOrStdout()}
			if m.top, err = os.Getwd(); err != nil {
				return err
			}
			ks, err := find(names)
			if err != nil {
				return err
			}
			return m.all(cmd.Context(), ks)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&names, "kernel", nil, "kernels to run (default: all of amd64)")
	flags.StringVar(&m.run, "run", "", "run only tests that match, and nothing else; no result is kept")
	flags.BoolVar(&m.beside, "variants", false, "with --run, too: doctor, the demo, and the machines that lack something")
	flags.StringVar(&m.results, "results", "bin/vm/results", "folder for what was found")
	flags.DurationVar(&m.timeout, "timeout", 10*time.Minute, "when to end one machine")
	flags.IntVar(&m.atOnce, "at-once", 6, "machines at a time, of one processor each")
	return cmd
}

// all fetches what is missing, builds, and runs the kernels' jobs as machines come
// free.
func (m *matrix) all(ctx context.Context, kernels []target) error {
	began := time.Now()
	if err := os.MkdirAll(m.results, 0o755); err != nil {
		return err
	}
	if err := m.list(ctx); err != nil {
		return err
	}
	m.version = m.describe(ctx)
	var plans [][]*job
	builds := make(map[string][]binary)
	for _, k := range kernels {
		if err := k.fetch(ctx, m.folders, m.out); err != nil {
			return err
		}
		in, err := k.open(m.folders.cache)
		if err != nil {
			return err
		}
		if _, ok := builds[k.arch]; !ok {
			if builds[k.arch], err = m.build(ctx, k.arch); err != nil {
				return err
			}
		}
		planned, err := m.plan(in, builds[k.arch])
		if err != nil {
			return err
		}
		plans = append(plans, planned)
	}
	jobs := inOrder(plans)
	m.runJobs(ctx, jobs)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.watchTree(ctx)
	err := m.conclude(kernels, jobs)
	fmt.Fprintf(m.out, "%d kernels in %s\n", len(kernels), time.Since(began).Round(time.Second))
	return err
}

// conclude prints what came of the jobs, and keeps it where all tests ran: whatever
// failed, so that the table can say that it did.
func (m *matrix) conclude(kernels []target, jobs []*job) error {
	failed := 0
	var errs []error
	for _, k := range kernels {
		r := gather(k.name, jobs)
		r.Version = m.version
		r.print(m.out)
		failed += r.Bad
		if r.Passed == 0 {
			errs = append(errs, fmt.Errorf("no test passed under kernel %s", k.name))
		}
		if m.run == "" {
			errs = append(errs, r.write(m.results))
		}
	}
	if m.run == "" {
		fmt.Fprintf(m.out, "\nkept in %s, also where something failed, for `make vm-table`: version %s\n", m.results, cmp.Or(m.version, "unknown"))
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d of %d machines failed", failed, len(jobs)))
	}
	return errors.Join(errs...)
}

// runJobs runs the jobs, some at once, until all are done or ctx is.
func (m *matrix) runJobs(ctx context.Context, jobs []*job) {
	next := make(chan *job)
	done := make(chan struct{})
	for range m.atOnce {
		go func() {
			for j := range next {
				j.run(ctx, m)
			}
			done <- struct{}{}
		}()
	}
	for _, j := range jobs {
		if ctx.Err() == nil {
			next <- j
		}
	}
	close(next)
	for range m.atOnce {
		<-done
	}
}

// plan returns a kernel's jobs, the long ones first.
func (m *matrix) plan(in *installed, binaries []binary) ([]*job, error) {
	args := []string{"-test.short", "-test.v"} // for the time, the machine sees to it
	if m.run != "" {
		args = append(args, "-test.run", m.run)
	}
	var jobs []*job
	for _, packages := range apart {
		jobs = append(jobs, &job{kernel: in, name: strings.Join(packages, ", "), whole: m.run == ""})
	}
	rest := &job{kernel: in, name: "the others", whole: m.run == ""}
	jobs = append(jobs, rest)
	agent := binaries[len(binaries)-1]
	if rest.doctor = m.everything(); rest.doctor {
		finds := agent.with("doctor", "-o", "json")
		finds.finds = true
		rest.runs = append(rest.runs, finds)
	}
	for _, b := range binaries[:len(binaries)-1] {
		if !m.matched(b.pkg) {
			continue
		}
		i := slices.IndexFunc(apart, func(packages []string) bool { return slices.Contains(packages, b.pkg) })
		j := rest
		if i >= 0 {
			j = jobs[i]
		}
		j.runs = append(j.runs, b.with(args...))
		j.tests++
	}
	if !m.everything() {
		return withRuns(jobs), nil
	}
	rest.runs = append(rest.runs, agent.with("demo", "--incident", "call"))
	varied, err := vary(in, binaries, args)
	return withRuns(append(jobs, varied...)), err
}

// everything says whether doctor, the demo and the variants run.
func (m *matrix) everything() bool { return m.run == "" || m.beside }

// withRuns leaves out the jobs that have nothing to run.
func withRuns(jobs []*job) []*job {
	return slices.DeleteFunc(jobs, func(j *job) bool { return len(j.runs) == 0 })
}

// inOrder returns the jobs of several kernels in the order to run them in: first the
// long ones, on newer kernels above all, so that none of them is the last to end.
func inOrder(plans [][]*job) (jobs []*job) {
	for i, more := 0, true; more; i++ {
		more = false
		for _, plan := range slices.Backward(plans) {
			if i < len(plan) {
				jobs, more = append(jobs, plan[i]), true
			}
		}
	}
	return jobs
}

// build compiles what runs in the guests of an architecture: the tests of every
// package that can reach the kernel, and last the agent.
func (m *matrix) build(ctx context.Context, arch string) ([]binary, error) {
	dir := filepath.Join(m.top, "bin/vm", arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	args := []string{"test", "-c", "-ldflags=-s -w", "-o", dir + "/"}
	var out []binary
	for _, pkg := range m.packages {
		args = append(args, "./"+pkg)
		out = append(out, binary{pkg: pkg, dir: filepath.Join(m.top, pkg), path: filepath.Join(dir, filepath.Base(pkg)+".test")})
	}
	agent := binary{dir: m.top, path: filepath.Join(dir, "sockhealth")}
	if err := m.goTool(ctx, arch, args...); err != nil {
		return nil, err
	}
	if err := m.goTool(ctx, arch, "build", "-trimpath", "-ldflags=-s -w", "-o", agent.path, "./cmd/sockhealth"); err != nil {
		return nil, err
	}
	for i := range out {
		if err := m.equip(ctx, arch, &out[i], &agent); err != nil {
			return nil, err
		}
	}
	return append(out, agent), nil
}
