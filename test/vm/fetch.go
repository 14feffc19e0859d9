// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// fetch unpacks a kernel into the cache folder, unless it is there: remove its
// folder to get a newer one. Apt works on lists and a cache of its own below
// the cache folder; of the system's configuration it reads the address of the
// mirror, and checks signatures with Debian's keys.
func (k target) fetch(ctx context.Context, to *folders, progress io.Writer) error {
	in := &installed{target: k, dir: filepath.Join(to.cache, k.name)}
	if isFile(in.ready()) {
		return nil
	}
	a, err := newApt(ctx, k, to.cache)
	if err != nil {
		return err
	}
	packages, err := a.packages(ctx)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(to.run, k.name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if _, err := a.run(ctx, tmp, "apt-get", append([]string{"download"}, packages...)...); err != nil {
		return err
	}
	root := filepath.Join(tmp, "root")
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if err := command(ctx, "dpkg", "-x", deb, root); err != nil {
			return err
		}
	}
	if err := settle(ctx, root); err != nil {
		return fmt.Errorf("unpack kernel %s: %w", k.name, err)
	}
	if err := os.RemoveAll(in.dir); err != nil {
		return err
	}
	if err := os.Rename(root, in.dir); err != nil {
		return err
	}
	if err := os.WriteFile(in.ready(), []byte(strings.Join(packages, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s: %s\n", k.name, strings.Join(packages, " "))
	return nil
}

// settle makes lib/modules/RELEASE complete, wherever the packages put it.
func settle(ctx context.Context, root string) error {
	if _, err := os.Stat(filepath.Join(root, "lib")); errors.Is(err, os.ErrNotExist) {
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return err
		}
	}
	releases, err := os.ReadDir(filepath.Join(root, "lib/modules"))
	if err != nil {
		return err
	}
	for _, r := range releases {
		if err := command(ctx, "depmod", "-b", root, r.Name()); err != nil {
			return err
		}
	}
	return nil
}

// apt is apt-get and apt-cache with a state of their own.
type apt struct {
	target target
	config string
}

func newApt(ctx context.Context, k target, cache string) (*apt, error) {
	uri, err := mirror(ctx, strings.HasSuffix(k.suite, "-security"))
	if err != nil {
		return nil, err
	}
	state := filepath.Join(cache, ".apt", k.suite+"-"+k.arch)
	for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			return nil, err
		}
	}
	sources := fmt.Sprintf("Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: %s\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
		uri, k.suite, k.arch)
	proxy, err := proxies(ctx)
	if err != nil {
		return nil, err
	}
	// Without the system's own parts: their hooks change things outside.
	config := proxy + fmt.Sprintf(`Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "%[1]s/list.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::State::Lists "%[1]s/lists";
Dir::Cache "%[1]s/cache";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Architecture "%[2]s";
APT::Architectures { "%[2]s"; };
APT::Sandbox::User "root";
`, state, k.arch)
	a := &apt{target: k, config: filepath.Join(state, "apt.conf")}
	err = errors.Join(
		os.WriteFile(filepath.Join(state, "list.sources"), []byte(sources), 0o644),
		os.WriteFile(a.config, []byte(config), 0o644))
	if err != nil {
		return nil, err
	}
	_, err = a.run(ctx, state, "apt-get", "update")
	return a, err
}

// proxies returns the lines of the system's configuration of apt that say by
// which proxy the mirror is reached.
func proxies(ctx context.Context) (string, error) {
	out, err := output(ctx, exec.CommandContext(ctx, "apt-config", "dump"))
	if err != nil {
		return "", err
	}
	var lines strings.Builder
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(line, " ")
		if strings.HasPrefix(name, "Acquire::http") && strings.Contains(name, "Proxy") {
			lines.WriteString(line)
		}
	}
	return lines.String(), nil
}

// mirror returns the address of the Debian archive, or of its security archive,
// that the system's apt uses.
func mirror(ctx context.Context, security bool) (string, error) {
	out, err := output(ctx, exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)",
		"Identifier: Packages", "Origin: Debian"))
	if err != nil {
		return "", fmt.Errorf("ask apt for its mirror: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		codename, uri, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && security == strings.HasSuffix(codename, "-security") {
			return uri, nil
		}
	}
	return "", errors.New("apt knows no Debian archive to fetch kernels from [add Debian's main and security archives to /etc/apt/sources.list.d and run: apt-get update]")
}

// packages names what to unpack: the image, and where later kernels were split
// into several packages, those. A package without contents of its own stands
// for the one it depends on.
func (a *apt) packages(ctx context.Context) ([]string, error) {
	out, err := a.run(ctx, "", "apt-cache", "pkgnames", "linux-image-")
	if err != nil {
		return nil, err
	}
	name, err := newest(strings.Fields(string(out)), a.target.pattern)
	if err != nil {
		return nil, fmt.Errorf("find kernel %s in %s: %w", a.target.name, a.target.suite, err)
	}
	out, err = a.run(ctx, "", "apt-cache", "depends", "--recurse", "--no-suggests", "--no-recommends", "--no-conflicts",
		"--no-breaks", "--no-replaces", "--no-enhances", name)
	if err != nil {
		return nil, err
	}
	real := regexp.MustCompile(`^linux-(image|binary|modules|base)-[0-9].*-cloud-` + a.target.arch + `$`)
	var all []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); real.MatchString(line) {
			all = append(all, line)
		}
	}
	if a.target.arch != runtime.GOARCH {
		all = append(all, "busybox-static") // this machine's does not run there
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// newest returns the name with the highest numbers among those that match.
func newest(names []string, pattern string) (string, error) {
	re, err := regexp.Compile(`^(?:` + pattern + `)$`)
	if err != nil {
		return "", err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !re.MatchString(n) })
	if len(names) == 0 {
		return "", fmt.Errorf("no package matches %q", pattern)
	}
	return slices.MaxFunc(names, byNumbers), nil
}

var digits = regexp.MustCompile(`[0-9]+|[^0-9]+`)

// byNumbers compares names with their runs of digits taken as numbers.
func byNumbers(a, b string) int {
	as, bs := digits.FindAllString(a, -1), digits.FindAllString(b, -1)
	return slices.CompareFunc(as, bs, func(x, y string) int {
		if isDigit(x[0]) && isDigit(y[0]) && len(x) != len(y) {
			return len(x) - len(y)
		}
		return strings.Compare(x, y)
	})
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// run calls one of apt's tools in a folder.
func (a *apt) run(ctx context.Context, dir, tool string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, tool, append([]string{"-q"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+a.config, "LC_ALL=C")
	return output(ctx, cmd)
}
