// Package abi is the one declared list of what NVIDIA's two driver libraries export: every symbol of libcuda.so.1 and
// libnvidia-ml.so.1 with its versions, flags, signature and what the interposer does with it. The C declarations in
// include/, the interposer's hook tables and the software GPU's exports are all generated from it.
//
//	syms, err := abi.CUDA()  // every exported symbol of libcuda.so.1
//	syms, err := abi.NVML()  // every exported symbol of libnvidia-ml.so.1
//
// The lists themselves are cuda.tsv and nvml.tsv; their first lines say what each column means.
package abi

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:generate go run ./gen

//go:embed cuda.tsv
var cudaTSV string

//go:embed nvml.tsv
var nvmlTSV string

// Class says what the interposer does with a symbol.
type Class string

// The classes of a symbol.
const (
	Hook   Class = "hook"   // the interposer's own function stands before the driver's
	Pass   Class = "pass"   // the driver's own function is reached unchanged
	Refuse Class = "refuse" // the call is answered with an error and never reaches the driver
	Touch  Class = "touch"  // the driver's own function is reached unchanged, while no memory moves
)

// Flags is the set of cuGetProcAddress stream flags that answer a symbol.
type Flags uint8

// The flags of cuGetProcAddress; their values are CUdriverProcAddress_flags as bit numbers.
const (
	Default         Flags = 1 << 0 // CU_GET_PROC_ADDRESS_DEFAULT
	LegacyStream    Flags = 1 << 1 // CU_GET_PROC_ADDRESS_LEGACY_STREAM
	PerThreadStream Flags = 1 << 2 // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
)

// DriverVersion is the CUDA version of the driver that the lists were read off: cuGetProcAddress refuses a newer one.
const DriverVersion = 13000

// Param is one parameter of a call.
type Param struct {
	Type string // C type, spaces normalised: "const CUgraphNode*", "unsigned int", "void**"
	Name string
}

// Symbol is one exported name.
type Symbol struct {
	Name   string  // the exported name
	Base   string  // the name cuGetProcAddress finds it by; "" where it does not (always for NVML)
	Since  int     // lowest cudaVersion that cuGetProcAddress answers with this symbol
	Flags  Flags   // stream flags that cuGetProcAddress answers with this symbol
	Class  Class   // what the interposer does
	Result string  // C result type; "" where the signature is not known
	Params []Param // nil with an empty Result: the signature is not known
}

// Known reports whether the signature is declared by a public header.
func (s *Symbol) Known() bool { return s.Result != "" }

// Prototype returns the C declaration of s, without a semicolon, or "" when the signature is not known.
func (s *Symbol) Prototype() string {
	if !s.Known() {
		return ""
	}
	params := make([]string, len(s.Params))
	for i, p := range s.Params {
		params[i] = p.Type + " " + p.Name
		if strings.HasSuffix(p.Type, "*") {
			stars := len(p.Type) - len(strings.TrimRight(p.Type, "*"))
			params[i] = p.Type[:len(p.Type)-stars] + " " + p.Type[len(p.Type)-stars:] + p.Name
		}
	}
	if len(params) == 0 {
		params = []string{"void"}
	}
	return fmt.Sprintf("%s %s(%s)", s.Result, s.Name, strings.Join(params, ", "))
}

// CUDA returns the exported symbols of libcuda.so.1, in the order of the list. The slice is the caller's own.
func CUDA() ([]Symbol, error) { return ParseCUDA(cudaTSV) }

// NVML returns the exported symbols of libnvidia-ml.so.1, in the order of the list. The slice is the caller's own.
func NVML() ([]Symbol, error) { return ParseNVML(nvmlTSV) }

// ParseCUDA reads a list in the format of cuda.tsv. An error names the line and what is wrong with it.
func ParseCUDA(text string) ([]Symbol, error) {
	return parse("cuda.tsv", text, 6, func(col []string) (Symbol, error) {
		s := Symbol{Name: col[0]}
		var err error
		if s.Class, err = parseClass(col[4]); err != nil {
			return s, err
		}
		if col[1] != "-" {
			s.Base = col[1]
			if s.Since, err = strconv.Atoi(col[2]); err != nil || s.Since <= 0 {
				return s, fmt.Errorf("since %q is not a CUDA version", col[2])
			}
			if s.Flags, err = parseFlags(col[3]); err != nil {
				return s, err
			}
		} else if col[2] != "-" || col[3] != "-" {
			return s, fmt.Errorf("has a version or flags but no base name")
		}
		if col[5] == "?" {
			return s, nil
		}
		s.Result = "CUresult"
		s.Params, err = parseParams(col[5])
		return s, err
	})
}

// ParseNVML reads a list in the format of nvml.tsv. An error names the line and what is wrong with it.
func ParseNVML(text string) ([]Symbol, error) {
	return parse("nvml.tsv", text, 4, func(col []string) (Symbol, error) {
		s := Symbol{Name: col[0]}
		var err error
		if s.Class, err = parseClass(col[1]); err != nil {
			return s, err
		}
		if col[2] == "?" {
			return s, nil
		}
		s.Result = normalise(col[2])
		s.Params, err = parseParams(col[3])
		return s, err
	})
}

func parse(file, text string, columns int, row func([]string) (Symbol, error)) ([]Symbol, error) {
	var out []Symbol
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		col := strings.Split(line, "\t")
		if len(col) != columns {
			return nil, fmt.Errorf("abi: %s:%d: %d columns, want %d", file, i+1, len(col), columns)
		}
		if seen[col[0]] {
			return nil, fmt.Errorf("abi: %s:%d: %s is listed twice", file, i+1, col[0])
		}
		seen[col[0]] = true
		s, err := row(col)
		if err != nil {
			return nil, fmt.Errorf("abi: %s:%d: %s: %w", file, i+1, col[0], err)
		}
		out = append(out, s)
	}
	return out, nil
}

func parseClass(s string) (Class, error) {
	switch c := Class(s); c {
	case Hook, Pass, Refuse, Touch:
		return c, nil
	}
	return "", fmt.Errorf("class %q is not one of hook, pass, refuse, touch", s)
}

func parseFlags(s string) (Flags, error) {
	var f Flags
	for _, r := range s {
		if r < '0' || r > '2' {
			return 0, fmt.Errorf("flags %q: only digits 0 to 2 are known", s)
		}
		f |= 1 << (r - '0')
	}
	if f == 0 {
		return 0, fmt.Errorf("no flags")
	}
	return f, nil
}

// parseParams splits a C parameter list. No listed signature has a function pointer or an array spelled out.
func parseParams(list string) ([]Param, error) {
	params := []Param{}
	if strings.TrimSpace(list) == "void" || strings.TrimSpace(list) == "" {
		return params, nil
	}
	for _, p := range strings.Split(list, ",") {
		p = normalise(p)
		i := strings.LastIndexAny(p, " *")
		if i < 0 || i == len(p)-1 {
			return nil, fmt.Errorf("parameter %q has no type or no name", p)
		}
		params = append(params, Param{Type: strings.TrimSpace(p[:i+1]), Name: p[i+1:]})
	}
	return params, nil
}

// normalise leaves one space between words and none before a star.
func normalise(s string) string {
	s = strings.Join(strings.Fields(strings.ReplaceAll(s, "*", " * ")), " ")
	s = strings.ReplaceAll(s, " *", "*")
	return strings.ReplaceAll(s, "* ", "*")
}
