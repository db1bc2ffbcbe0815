package device

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A thread of a block of 1024 may have 64 registers. Along direct calls the assembler (ptxas 13.0) gives each function
// registers after those that its callers keep: what counts is the sum along a chain from the kernel on, with 2 for
// each return address. A function that is called by pointer, and what it calls, saves what it uses: there each counts
// alone. Of the 64, the assembler takes some itself, and a call leaves 32 alone. Measured so: with 49 values at once,
// clang's count, ptxas took 59 registers.
const (
	threadRegisters = 64
	mostLive        = 52
	mostOverCalls   = 28
	returnAddress   = 2
)

// TestRegisters: no function of the headers takes more registers than a thread of a block of 1024 can have, whatever
// the kernel says. Where PTX's assembler is there, it says so itself, of everything; elsewhere this is an estimate from
// clang's PTX. bench/shmem_registers.py launches the same kernels on a card.
func TestRegisters(t *testing.T) {
	args := []string{"../../bench/shmem_registers.py", "--clang", compiler(t, "clang++-19"), "--write-ptx", t.TempDir()}
	ptxas, err := exec.LookPath("ptxas")
	if err != nil {
		args = append(args, "--units", "single,rma_block,rma_warp,collective_block,reduce_block_3")
	}
	if out, err := exec.Command(compiler(t, "python3"), args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(args[4], "*.ptx"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no PTX was written: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".ptx"), func(t *testing.T) {
			if ptxas != "" {
				assemble(t, ptxas, file)
				return
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			functions := functionsOf(string(text))
			if len(functions) < 10 {
				t.Fatalf("%d functions were found", len(functions))
			}
			named := map[string]*ptxFunction{}
			for _, f := range functions {
				named[f.name] = f
				if live, over := f.registers(); live > mostLive || over > mostOverCalls {
					t.Errorf("%s has %d values at once and %d over a call, more than %d and %d", f.name, live, over, mostLive, mostOverCalls)
				}
			}
			for _, f := range functions {
				if n := f.chain(named); f.kernel && n > threadRegisters {
					t.Errorf("%s keeps %d values along a chain of direct calls, more than %d", f.name, n, threadRegisters)
				}
			}
		})
	}
}

// assemble asks the assembler how many registers each kernel of a file takes with all that it calls.
func assemble(t *testing.T, ptxas, file string) {
	out, err := exec.Command(ptxas, "-arch=sm_90", "-v", "-o", filepath.Join(t.TempDir(), "cubin"), file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found := regexp.MustCompile(`(?s)entry function '(\w+)'.*?Used (\d+) registers`).FindAllStringSubmatch(string(out), -1)
	if len(found) == 0 {
		t.Fatalf("no register counts in\n%s", out)
	}
	for _, m := range found {
		if n, _ := strconv.Atoi(m[2]); n > threadRegisters {
			t.Errorf("%s takes %d registers", m[1], n)
		}
	}
}

// ptxFunction is a function of a PTX text: its instructions and where each goes on.
type ptxFunction struct {
	name   string
	kernel bool
	params map[string]int // of a function that is called: their sizes in registers
	code   []instruction
	live   int // the most values of 32 bits at once
	calls  []call
}

// call is a call that a function makes, and the values that live on over it. Of a call by pointer the callee is a
// register.
type call struct {
	callee string
	over   int
}

type instruction struct {
	text     string
	call     bool
	uses     []string // registers and parameters
	defines  []string
	next     []int
	branches string // label
}

var (
	ptxHead     = regexp.MustCompile(`(?ms)^(?:\.visible |\.weak )?\.(entry|func)\s+(?:\([^)]*\)\s*)?(\w+)\(([^)]*)\)[^;{]*\{\n(.*?)\n}\n`)
	ptxParam    = regexp.MustCompile(`\.param (?:\.align \d+ )?\.\w(\d+) (\w+)(?:\[(\d+)\])?`)
	ptxRegister = regexp.MustCompile(`%(?:rd|fd|rs|r|f|p)\d+\b`)
	ptxLabel    = regexp.MustCompile(`^(\$\w+):$`)
	// Instructions whose first operand is not what they write.
	ptxNoResult = regexp.MustCompile(`^(?:st|red|bar|barrier|fence|membar|call|cp|mbarrier\.init|nanosleep|prefetch)\b`)
)

func functionsOf(text string) []*ptxFunction {
	var all []*ptxFunction
	for _, m := range ptxHead.FindAllStringSubmatch(text, -1) {
		f := &ptxFunction{name: m[2], kernel: m[1] == "entry", params: map[string]int{}}
		for _, p := range ptxParam.FindAllStringSubmatch(m[3], -1) {
			bits, _ := strconv.Atoi(p[1])
			count, _ := strconv.Atoi("0" + p[3])
			if m[1] == "func" { // a kernel's lie in memory of their own
				f.params[p[2]] = (bits*max(count, 1) + 31) / 32
			}
		}
		f.parse(m[4])
		all = append(all, f)
	}
	return all
}

func (f *ptxFunction) parse(body string) {
	labels := map[string]int{}
	for line := range strings.Lines(body) {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSpace(line)
		if m := ptxLabel.FindStringSubmatch(line); m != nil {
			labels[m[1]] = len(f.code)
			continue
		}
		for s := range strings.SplitSeq(line, ";") {
			s = strings.Trim(s, "{ \t")
			if s != "" && s[0] != '.' && s[0] != '}' && s[0] != '(' && s[0] != ')' {
				f.code = append(f.code, f.instruction(s))
			}
		}
	}
	for i := range f.code {
		c := &f.code[i]
		if c.branches != "" {
			c.next = append(c.next, labels[c.branches])
		}
		if n := len(c.next); n > 0 && c.next[0] < 0 { // the next one, whose number was not known
			c.next[0] = i + 1
		}
		if strings.HasPrefix(c.text, "brx") {
			c.next = nil
			for _, l := range labels {
				c.next = append(c.next, l)
			}
		}
	}
}

// instruction takes one apart. In next, -1 stands for what follows.
func (f *ptxFunction) instruction(s string) instruction {
	c := instruction{text: s, next: []int{-1}}
	guarded := false
	if s[0] == '@' {
		guard, rest, _ := strings.Cut(s, " ")
		c.uses, s, guarded = append(c.uses, strings.Trim(guard, "@!\t")), strings.TrimSpace(rest), true
		if g, r, ok := strings.Cut(c.text, "\t"); ok && !strings.Contains(g, " ") {
			c.uses, s = []string{strings.Trim(g, "@!")}, r
		}
	}
	for p := range f.params {
		if strings.Contains(s, p) {
			c.uses = append(c.uses, p)
		}
	}
	name, operands, _ := strings.Cut(strings.Replace(s, "\t", " ", 1), " ")
	all := ptxRegister.FindAllString(operands, -1)
	switch base, _, _ := strings.Cut(name, "."); {
	case base == "bra":
		c.branches = strings.TrimSpace(operands)
		if !guarded {
			c.next = nil
		}
	case base == "ret" || base == "exit" || base == "trap":
		if !guarded {
			c.next = nil
		}
	case ptxNoResult.MatchString(name):
		c.call = base == "call"
		c.uses = append(c.uses, all...)
	default:
		results := 0
		if first, _, _ := strings.Cut(operands, ","); strings.HasPrefix(strings.TrimSpace(operands), "{") {
			results = strings.Count(operands[:strings.Index(operands, "}")], "%")
		} else {
			results = strings.Count(first, "%") - strings.Count(first, "[%")
		}
		results = min(results, len(all))
		c.defines = all[:results]
		c.uses = append(c.uses, all[results:]...)
		if guarded {
			c.uses = append(c.uses, c.defines...)
		}
	}
	return c
}

// registers are the most of 32 bits that hold values at once, and of those the most that hold them over a call.
func (f *ptxFunction) registers() (live, over int) {
	in := make([]map[string]bool, len(f.code)+1)
	for i := range in {
		in[i] = map[string]bool{}
	}
	for changed := true; changed; {
		changed = false
		for i := len(f.code) - 1; i >= 0; i-- {
			c := &f.code[i]
			now := map[string]bool{}
			for _, n := range c.next {
				for r := range in[n] {
					now[r] = true
				}
			}
			for _, r := range c.defines {
				delete(now, r)
			}
			for _, r := range c.uses {
				now[r] = true
			}
			if len(now) != len(in[i]) {
				in[i], changed = now, true
			}
		}
	}
	for i, c := range f.code {
		through, all := 0, 0
		for r := range in[i] {
			all += f.size(r)
			if c.call && len(c.next) > 0 && in[c.next[0]][r] {
				through += f.size(r)
			}
		}
		live, over = max(live, all), max(over, through)
		if c.call && i+1 < len(f.code) { // the callee is on a line of its own
			f.calls = append(f.calls, call{strings.TrimRight(f.code[i+1].text, ", "), through})
		}
	}
	f.live = live
	return live, over
}

// chain is the most values along a chain of direct calls that begins here.
func (f *ptxFunction) chain(named map[string]*ptxFunction) int {
	most := f.live
	for _, c := range f.calls {
		if callee := named[c.callee]; callee != nil {
			most = max(most, c.over+returnAddress+callee.chain(named))
		}
	}
	return most
}

// size is how many registers a value takes.
func (f *ptxFunction) size(r string) int {
	switch {
	case r[0] != '%':
		return f.params[r]
	case strings.HasPrefix(r, "%p"):
		return 0
	case strings.HasPrefix(r, "%rd"), strings.HasPrefix(r, "%fd"):
		return 2
	}
	return 1
}
