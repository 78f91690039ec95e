// Package spelling guesses what a mistyped word was meant to be.
package spelling

import "strings"

// Nearest is the one word that a mistyped one most likely meant, empty if none
// or several are as near.
func Nearest(s string, words []string) string {
	same := strings.NewReplacer("-", "_", "0", "o").Replace(strings.ToLower(s))
	best, found := max(1, len(s)/3)+1, ""
	if len(s) > 64 {
		return ""
	}
	for _, w := range words {
		switch n := Distance(same, strings.ToLower(w)); {
		case n >= len(w):
		case n < best:
			best, found = n, w
		case n == best:
			found = ""
		}
	}
	return found
}

// Distance counts the insertions, deletions, replacements and swaps of
// neighbours between a and b.
func Distance(a, b string) int {
	var prev, row []int
	next := make([]int, len(b)+1)
	for j := range next {
		next[j] = j
	}
	for i := range len(a) {
		prev, row, next = row, next, make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], prev[j-1]+1)
			}
		}
	}
	return next[len(b)]
}
