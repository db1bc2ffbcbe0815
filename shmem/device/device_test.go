package device

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/lgpu/lgpu/shmem/mutation"
)

// compiler finds a compiler. Where continuous integration runs, none may be missing.
func compiler(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not installed", name)
		}
		t.Skipf("needs %s", name)
	}
	return path
}

// common are the arguments that every compilation has.
var common = []string{"-std=c++17", "-Wall", "-Wextra", "-Werror", "-I../include", "-Itestdata"}

// cuda are clang's for PTX without CUDA's headers.
func cuda(arch string) []string {
	return []string{"-x", "cuda", "-nocudainc", "-nocudalib", "--cuda-device-only", "--cuda-gpu-arch=" + arch, "--cuda-feature=+ptx80"}
}

func compile(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(compiler(t, name), append(append([]string{}, common...), args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
}

// TestCompiles: every function of the header, by every compiler and for the oldest and newest architectures.
func TestCompiles(t *testing.T) {
	t.Run("g++", func(t *testing.T) { compile(t, "g++", "-fsyntax-only", "-x", "c++", "testdata/every.cu") })
	t.Run("clang", func(t *testing.T) { compile(t, "clang-19", "-fsyntax-only", "-x", "c++", "testdata/every.cu") })
	for _, arch := range []string{"sm_70", "sm_80", "sm_90"} {
		t.Run(arch, func(t *testing.T) {
			compile(t, "clang-19", append(cuda(arch), "-fsyntax-only", "testdata/every.cu")...)
		})
	}
}

// apart are the functions that are not inlined but belong to a form: its copy in wide words, and the parts of
// collectives. One that is called by pointer stands where its address is taken.
var apart = regexp.MustCompile(`(?s)(?:call\.uni\s*(?:\([^)]*\),\s*)?|mov\.[bu]64\s+%rd\d+,\s*)(\w*(?:copy_quads|10collective)\w*)[,;]`)

// function is the text of a kernel in PTX, with those of its apart ones in the places of their calls.
func function(t *testing.T, ptx, name string) string {
	t.Helper()
	_, body, ok := strings.Cut(ptx, ".visible .entry "+name+"(")
	if !ok {
		t.Fatalf("the PTX has no kernel %s", name)
	}
	body, _, _ = strings.Cut(body, "\n}\n")
	for range 8 { // levels of calls
		body = apart.ReplaceAllStringFunc(body, func(call string) string {
			callee := regexp.MustCompile(`(?s)\.func[^;{}]*\b` + apart.FindStringSubmatch(call)[1] + `\([^;{}]*\{(.*?)\n}\n`).FindStringSubmatch(ptx)
			if callee == nil {
				t.Fatalf("the PTX has no function for %s", call)
			}
			return callee[1]
		})
	}
	return body
}

// TestInstructions: each form becomes the instructions that are meant, in order, and none that would be slower or
// weaker.
func TestInstructions(t *testing.T) {
	rows := []struct {
		kernel string
		want   []string // in this order
		never  []string
	}{
		{"signal_set", []string{"st.relaxed.sys.b64"}, []string{"fence", "st.release", "atom.", "bar.", ".local"}},
		{"signal_add", []string{"red.relaxed.sys.add.u64"}, []string{"fence", "atom.", "bar.", ".local"}},
		{"put_value", []string{"st.relaxed.sys.b32"}, []string{"fence", "atom.", ".local"}},
		{"get_value", []string{"ld.relaxed.sys.b64"}, []string{"fence", "atom."}},
		{"add4", []string{"red.relaxed.sys.add.u32"}, []string{"atom.", "fence", ".local"}},
		{"add8", []string{"red.relaxed.sys.add.u64"}, []string{"atom.", "fence", ".local"}},
		{"increment", []string{"red.relaxed.sys.add.u64"}, []string{"atom.", "fence", ".local"}},
		{"and4", []string{"red.relaxed.sys.and.b32"}, []string{"atom.", "fence"}},
		{"or8", []string{"red.relaxed.sys.or.b64"}, []string{"atom.", "fence"}},
		{"xor8", []string{"red.relaxed.sys.xor.b64"}, []string{"atom.", "fence"}},
		{"set_float", []string{"st.relaxed.sys.b32"}, []string{"atom.", "red.", "fence"}},
		{"fetch_add4", []string{"atom.relaxed.sys.add.u32"}, []string{"red.", "fence"}},
		{"fetch_add8", []string{"atom.relaxed.sys.add.u64"}, []string{"red.", "fence"}},
		{"swap8", []string{"atom.relaxed.sys.exch.b64"}, []string{"red.", "fence"}},
		{"compare_swap4", []string{"atom.relaxed.sys.cas.b32"}, []string{"red.", "fence"}},
		{"fetch8", []string{"ld.relaxed.sys.b64"}, []string{"atom.", "red.", "fence"}},
		{"wait", []string{"ld.acquire.sys.b64"}, []string{"fence", ".local"}},
		{"quiet_thread", []string{"fence.sc.sys"}, []string{"bar.", "fence.acq_rel"}},
		{"quiet_block", []string{"bar.sync", "fence.sc.sys"}, []string{"fence.acq_rel"}},
		{"fence_warp", []string{"bar.warp.sync", "fence.acq_rel.sys"}, []string{"fence.sc"}},
		{"barrier_thread", []string{"fence.acq_rel.sys", "st.relaxed.sys.b64", "ld.acquire.sys.b64"}, []string{"fence.sc"}},
		{"put_signal_block", []string{"bar.sync", "st.v2.b64", "bar.sync", "fence.acq_rel.sys", "st.relaxed.sys.b64"}, []string{"st.release"}},
		{"put_block", []string{"ld.L1::no_allocate.v2.b64", "st.v2.b64", "bar.sync"}, []string{"fence", ".sys", ".local"}},
		{"put_nbi_block", []string{"ld.L1::no_allocate.v2.b64", "st.v2.b64"}, []string{"fence", ".sys", "bar.sync", ".local"}},
		{"get_block", []string{"ld.relaxed.sys.v2.b64", "st.v2.b64", "bar.sync"}, []string{"fence", "no_allocate.v2", ".local"}},
	}
	// The bulk copy engine is there from sm_90 on.
	bulk := rows[0]
	bulk.kernel, bulk.never = "put_bulk_block", []string{".sys", "local_depot"}
	bulk.want = []string{"fence.proxy.async", "bar.sync", "mbarrier.init", "fence.proxy.async", "mbarrier.arrive.expect_tx", "cp.async.bulk.shared",
		"mbarrier.try_wait", "cp.async.bulk.global", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group.read 1"}
	for _, arch := range []string{"sm_70", "sm_90"} {
		rows := rows
		if arch == "sm_90" {
			rows = append(rows, bulk)
		}
		t.Run(arch, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "forms.ptx")
			compile(t, "clang-19", append(cuda(arch), "-O3", "-DLSHMEM_P2P_ONLY", "-S", "-o", file, "testdata/forms.cu")...)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				body := function(t, string(text), r.kernel)
				rest := body
				for _, w := range r.want {
					_, after, ok := strings.Cut(rest, w)
					if !ok {
						t.Errorf("%s: no %s where it should be in %q", r.kernel, w, r.want)
						break
					}
					rest = after
				}
				for _, n := range r.never {
					if strings.Contains(body, n) {
						t.Errorf("%s contains %s", r.kernel, n)
					}
				}
			}
		})
	}
}

// TestQueueInstructions: in the network path, who is told what, how far.
func TestQueueInstructions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "forms.ptx")
	compile(t, "clang-19", append(cuda("sm_90"), "-O3", "-S", "-o", file, "testdata/forms.cu")...)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	body := func(mangled string) string {
		i := bytes.LastIndex(text, []byte(mangled+"("))
		for ; i >= 0; i = bytes.LastIndex(text[:i], []byte(mangled+"(")) {
			if head := text[bytes.LastIndexByte(text[:i], '\n')+1 : i]; bytes.HasPrefix(head, []byte(".weak .func")) {
				return strings.SplitN(string(text[i:]), "\n}\n", 2)[0]
			}
		}
		t.Fatalf("no function %s", mangled)
		return ""
	}
	order := func(name, body string, want ...string) {
		for _, w := range want {
			_, after, ok := strings.Cut(body, w)
			if !ok {
				t.Errorf("%s: no %s where it should be in %q", name, w, want)
				return
			}
			body = after
		}
	}
	post := body("_ZN6lshmem3nic4postERKNS0_6handleEm")
	order("post", post, "atom.relaxed.gpu.max.u64", "fence.acq_rel.sys", "red.relaxed.sys.max.u64")
	order("post", post, "atom.relaxed.gpu.cas.b32", "fence.acq_rel.sys", "atom.relaxed.gpu.max.u64", "fence.acq_rel.sys", "st.relaxed.sys.b32",
		"fence.acq_rel.sys", "st.relaxed.sys.b64")
	order("post", post, "st.release.sys.b32")
	publish := body("_ZN6lshmem3nic7publishERKNS0_6handleEmj")
	order("publish", publish, "fence.acq_rel.", "atom.relaxed.gpu.cas.b64", "ld.relaxed.gpu.b64")
	if !strings.Contains(publish, "fence.acq_rel.gpu") || !strings.Contains(publish, "fence.acq_rel.sys") || strings.Contains(publish, "fence.acq_rel.cta") {
		t.Error("publish must fence for the GPU or the system")
	}
	poll := body("_ZN6lshmem3nic4pollERKNS0_6handleEm")
	order("poll", poll, "ld.acquire.gpu.b64", "ld.relaxed.gpu.b64", "ld.acquire.sys.b32", "ld.acquire.gpu.b64")
	order("poll", poll, "fence.acq_rel.gpu", "red.relaxed.gpu.max.u64")
}

// A program is a C++ test, built once for each set of flags.
type program struct {
	once sync.Once
	file string
}

var programs sync.Map

func run(t *testing.T, source string, flags []string, args ...string) (string, error) {
	t.Helper()
	g := compiler(t, "g++")
	key := source + strings.Join(flags, " ")
	v, _ := programs.LoadOrStore(key, new(program))
	p := v.(*program)
	p.once.Do(func() {
		file := filepath.Join(binaries, strings.Map(func(r rune) rune {
			if r == '/' || r == ' ' {
				return '_'
			}
			return r
		}, key))
		cmd := exec.Command(g, append(append(append([]string{}, flags...), common...), "-pthread", "-o", file, "testdata/"+source)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
			return
		}
		p.file = file
	})
	if p.file == "" {
		t.Fatalf("%s did not compile", source)
	}
	cmd := exec.CommandContext(t.Context(), p.file, args...)
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	if err := cmd.Run(); err != nil {
		return diagnostics.String(), err
	}
	return out.String(), nil
}

// binaries is where programs are built, and the copy of the headers that has defects.
var binaries string

// defective are the flags for a program with a defect of the list.
func defective(number string) []string {
	return []string{"-I" + filepath.Join(binaries, "include"), "-D" + mutation.Macro + "=" + number}
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lshmem-device")
	if err != nil {
		panic(err)
	}
	binaries = dir
	if err := mutation.Copy("../include", filepath.Join(dir, "include")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// TestMapped: the load and store path on real threads.
func TestMapped(t *testing.T) {
	for _, what := range []string{"copies", "atomics", "waits", "messages", "order"} {
		t.Run(what, func(t *testing.T) {
			if out, err := run(t, "mapped.cpp", nil, what); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

var sanitize = []string{"-fsanitize=thread", "-g", "-DFEW_TYPES"}

// TestMappedRaces: the same under ThreadSanitizer.
func TestMappedRaces(t *testing.T) {
	for _, what := range []string{"atomics", "waits", "messages"} {
		t.Run(what, func(t *testing.T) {
			if out, err := run(t, "mapped.cpp", sanitize, what); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// TestMappedDefects: the tests above find the defects of the list that are in this path.
func TestMappedDefects(t *testing.T) {
	for _, r := range []struct{ defect, what, how string }{
		{"6", "atomics", ""}, {"24", "copies", ""}, {"8", "messages", "race"},
	} {
		t.Run("M"+r.defect, func(t *testing.T) {
			flags := append(defective(r.defect), "-DLSHMEM_P2P_ONLY", "-DFEW_TYPES")
			if r.how == "race" {
				flags = append(flags, sanitize...)
			}
			if _, err := run(t, "mapped.cpp", flags, r.what); err == nil {
				t.Fatal("nothing was found")
			} else if _, ok := err.(*exec.ExitError); !ok {
				t.Fatal(err)
			}
		})
	}
}
