// SPDX-License-Identifier: Apache-2.0

package ancestor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// now is what loads the programs in loader.go, and before what loads older ones: the
// loader's own tests do it so.
const now, before = "return load(&Programs{pins: pins, types: types})", "return LoadOlder(pins)"

// Build builds an agent whose records are shorter, from the module in a folder, to
// path. The source is this one's, but for how the programs are loaded. env (NAME=VALUE)
// comes beside the environment of this process.
func Build(ctx context.Context, module, path string, env ...string) error {
	dir, err := os.MkdirTemp("", "sockhealth-older-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := change(filepath.Join(module, "internal/loader"), dir)
	if err != nil {
		return fmt.Errorf("change how an older agent loads: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", path, "./cmd/sockhealth")
	// Interrupted, go leaves what it has begun.
	cmd.Dir, cmd.Env = module, append(append(os.Environ(), "CGO_ENABLED=0", "GOTMPDIR="+dir), env...)
	// The compilers, too, are not to go on.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("build an older agent: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("build an older agent: %w: %s", err, out)
	}
	return nil
}

// change writes what is different from the loader into dir, and returns the file
// that says so to go build.
func change(room, dir string) (overlay string, err error) {
	loads, err := os.ReadFile(filepath.Join(room, "loader.go"))
	loadsOlder, olderErr := os.ReadFile(filepath.Join(room, "export_test.go"))
	if err := errors.Join(err, olderErr); err != nil {
		return "", err
	}
	if strings.Count(string(loads), now) != 1 {
		return "", fmt.Errorf("loader.go does not say %q once", now)
	}
	replace := make(map[string]string)
	for name, text := range map[string]string{
		"loader.go": strings.Replace(string(loads), now, before, 1), "older.go": string(loadsOlder),
	} {
		replace[filepath.Join(room, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o644)
}
