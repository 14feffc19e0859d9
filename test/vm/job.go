// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// job is one machine of a matrix.
type job struct {
	kernel  *installed
	name    string
	runs    []program
	env     []string
	without []string // modules to take away
	append  string   // to the kernel's command line
	doctor  bool     // its output begins with doctor's report
	tests   int      // test binaries among runs
	whole   bool     // each of them has a test that passes under any kernel

	// What came of it.
	status int
	err    error
	took   time.Duration
	cpu    time.Duration
	output []byte
}

// run boots the machine. All it says goes to a file as it comes, and the kernel log
// after it where the job fails; what matters, or all where that is asked for, goes to
// the matrix's output.
func (j *job) run(ctx context.Context, m *matrix) {
	began := time.Now()
	j.status, j.err = j.boot(ctx, m)
	j.took = time.Since(began).Round(time.Second)
	word := "ok"
	if !j.ok() {
		word = fmt.Sprintf("FAILED, status %d, see %s", j.status, m.logOf(j))
	}
	if j.err != nil {
		word += ": " + j.err.Error()
	}
	fmt.Fprintf(m.out, "%s%s (%s, processor %s)\n", j.label(), word, j.took, j.cpu)
}

func (j *job) boot(ctx context.Context, m *matrix) (status int, err error) {
	init, err := initOf(j.kernel.arch)
	if err != nil {
		return 1, err
	}
	log, err := os.Create(m.logOf(j))
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	var kept bytes.Buffer
	live := &lines{w: m.out, prefix: j.label(), all: m.run != "" && !m.beside}
	vm := &machine{
		kernel: j.kernel, tmp: m.folders.run, init: init, programs: j.runs,
		env: append(usual(lacking(j.kernel.arch)), j.env...), without: j.without, append: j.append, timeout: m.timeout,
		stdout: io.MultiWriter(log, live, &kept), stderr: log,
	}
	status, err = vm.run(ctx)
	j.cpu = vm.cpu.Round(time.Second)
	live.flush()
	j.output = kept.Bytes()
	if err == nil && status == 0 {
		err = allRan(j.output, j.tests, j.whole)
	}
	if (err != nil || status != 0) && vm.log != "" {
		_, logErr := fmt.Fprintf(log, "\nkernel log:\n%s", vm.log)
		err = errors.Join(err, logErr)
	}
	return status, err
}

// usual is what every guest's program is told: tests must run, but for those that
// need what no guest has. Memory they have enough of, so that the collector works little.
func usual(lacks string) []string {
	return []string{"SOCKHEALTH_MUST_RUN=1", "SOCKHEALTH_TEST_WITHOUT=" + lacks, "GOGC=400"}
}

// label begins each of a job's lines.
func (j *job) label() string { return fmt.Sprintf("%-9s %-30s ", j.kernel.name, j.name) }

// logOf is where a job's output goes.
func (m *matrix) logOf(j *job) string {
	return filepath.Join(m.results, j.kernel.name+"-"+strings.NewReplacer("/", "-", ", ", "-", " ", "_").Replace(j.name)+".log")
}

// ok says whether the machine ended well.
func (j *job) ok() bool { return j.err == nil && j.status == 0 }

// allRan demands that each of some test binaries came to its end, and where whole that
// it ran a test.
func allRan(output []byte, binaries int, whole bool) error {
	parts := bytes.Split(output, []byte("\nPASS\n"))
	if len(parts) != binaries+1 {
		return fmt.Errorf("%d of %d test binaries came to their end", len(parts)-1, binaries)
	}
	for _, p := range parts[:binaries] {
		if whole && !ranOne.Match(p) {
			return errors.New("no test ran")
		}
	}
	return nil
}

// ranOne is the line of a test that passed.
var ranOne = regexp.MustCompile(`(?m)^--- PASS: `)

// locked lets several write whole lines.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// telling are the lines that say that a test did not pass.
var telling = regexp.MustCompile(`^\s*--- (FAIL|SKIP)|^(panic|fatal error|FAIL|SIGQUIT)\b`)

// lines passes whole lines on, each with a prefix: all, or those that tell.
type lines struct {
	w      io.Writer
	prefix string
	all    bool
	rest   []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.rest = rest
		l.pass(line)
	}
}

func (l *lines) pass(line []byte) {
	if l.all || telling.Match(line) {
		fmt.Fprintf(l.w, "%s%s\n", l.prefix, strings.TrimRight(string(line), "\r"))
	}
}

// flush passes on what ended without a line feed.
func (l *lines) flush() {
	if len(l.rest) > 0 {
		l.pass(l.rest)
		l.rest = nil
	}
}
