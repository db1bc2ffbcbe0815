// Package slip guesses which word somebody meant who typed another: a command, an option, a file, a setting.
//
//	slip.Nearest("memroy.max", names) // memory.max
package slip

import "strings"

// slips is how many letters a word may differ by and still be taken for a slip of another.
const slips = 2

// Nearest returns the candidate that word was most likely meant to be: the only one that begins with it, or else the one
// with the fewest slips; "" for none.
func Nearest(word string, candidates []string) string {
	var begun []string
	best, least := "", min(slips, (len(word)+1)/2)+1
	for _, c := range candidates {
		if strings.HasPrefix(c, word) {
			begun = append(begun, c)
		}
		if d := Distance(word, c); d < least {
			best, least = c, d
		}
	}
	if len(begun) == 1 {
		return begun[0]
	}
	return best
}

// Distance is the number of letters to add, drop, change, or swap with the next one, to make b of a (optimal string
// alignment). Words of more than 64 bytes, which are none of this program's, differ by all their letters.
func Distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	var rows [3][longest + 1]int // before the last, last, this
	for j := range len(b) + 1 {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		rows[2][0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[1][j]+1, rows[2][j-1]+1, rows[1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[0][j-2]+1)
			}
			rows[2][j] = d
		}
		rows[0], rows[1] = rows[1], rows[2]
	}
	return rows[1][len(b)]
}
