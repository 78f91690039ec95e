package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	searchTimeout = 15 * time.Second
	searchTries   = 2 // an engine that nobody asked for a while is slow once
	fetchTimeout  = 60 * time.Second
	askLimit      = 64 << 10
	searchLimit   = 4 << 20
	fetchLimit    = 16 << 20 // 2 MiB of text, in the longest spelling that JSON has
	queryLimit    = 2 << 10
	webConns      = 16
	// pagesMost bounds what one call may remember.
	pagesMost = 4096
	// pathMost is what the address of a Unix socket has room for.
	pathMost = 107
)

// record is a call's way to the web, and what went by it. The researcher asks the
// bridge by a socket in its own folder and the bridge asks the sidecars, so which
// pages were found and fetched is what they said, not what a model or a program that
// it took over says.
type record struct {
	search, fetch string
	client        *http.Client
	server        *http.Server
	serving       sync.WaitGroup

	mu      sync.Mutex
	pages   map[string]bool // canonical
	results int             // of all searches
	fetched int
	failed  []string // engines that a search without results waited for in vain
}

// openRecord listens in a call's folder.
func openRecord(dir, search, fetch string) (*record, string, error) {
	at := filepath.Join(dir, "web")
	if len(at) > pathMost {
		return nil, "", fmt.Errorf("%s is too long for a socket", at)
	}
	l, err := net.Listen("unix", at)
	if err != nil {
		return nil, "", err
	}
	if err := os.Chmod(at, 0o600); err != nil {
		return nil, "", errors.Join(err, l.Close())
	}
	r := &record{search: search, fetch: fetch, pages: map[string]bool{}}
	r.client = &http.Client{
		// Sidecars are asked by name and port, never by a proxy, and follow redirects themselves.
		Transport:     &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /search", r.serveSearch)
	mux.HandleFunc("POST "+spec.FetchPath, r.serveFetch)
	r.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: log.New(io.Discard, "", 0)}
	r.serving.Go(func() { _ = r.server.Serve(netutil.LimitListener(l, webConns)) })
	return r, at, nil
}

func (r *record) close() {
	_ = r.server.Close()
	r.serving.Wait()
	r.client.CloseIdleConnections()
}

// knows says whether a page was found or fetched.
func (r *record) knows(page string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pages[canonical(page)]
}

// unavailable are the engines for whose failure this call found nothing at all;
// none if it found or fetched something.
func (r *record) unavailable() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.results > 0 || r.fetched > 0 {
		return nil
	}
	return slices.Clone(r.failed)
}

func (r *record) add(pages ...string) {
	for _, p := range pages {
		if c := canonical(p); c != "" && len(c) <= urlLimit && len(r.pages) < pagesMost {
			r.pages[c] = true
		}
	}
}

// found is what a search gives the researcher.
type found struct {
	Results       []result `json:"results"`
	EnginesFailed []string `json:"engines_failed"`
}

type result struct {
	URL     string  `json:"url"`
	Title   string  `json:"title"`
	Content string  `json:"content"`
	Score   float64 `json:"score"`
}

func (r *record) serveSearch(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query().Get("q")
	if strings.TrimSpace(q) == "" || len(q) > queryLimit {
		refuse(w, http.StatusBadRequest, "bad_query")
		return
	}
	var f found
	var err error
	for range searchTries {
		f, err = r.ask(req.Context(), q)
		if !errors.Is(err, context.DeadlineExceeded) || req.Context().Err() != nil {
			break
		}
	}
	r.mu.Lock()
	if err != nil {
		r.failed = []string{"search: " + why(err)}
	} else {
		r.results += len(f.Results)
		for _, s := range f.Results {
			r.add(s.URL)
		}
		if len(f.EnginesFailed) > 0 {
			r.failed = f.EnginesFailed
		}
	}
	r.mu.Unlock()
	if err != nil {
		refuse(w, http.StatusBadGateway, "search_unavailable")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(f)
}

// why is an error in words that hold nothing of what was asked.
func why(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "it did not answer in time"
	}
	if s := (*statusError)(nil); errors.As(err, &s) {
		return s.Error()
	}
	return "it gave no answer that can be read"
}

type statusError struct{ status int }

func (e *statusError) Error() string { return fmt.Sprintf("it answered with status %d", e.status) }

// ask is one search.
func (r *record) ask(ctx context.Context, q string) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	query := url.Values{"q": {q}, "format": {"json"}, "pageno": {"1"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.search+"/search?"+query.Encode(), nil)
	if err != nil {
		return found{}, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := r.client.Do(req)
	if err != nil {
		return found{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return found{}, &statusError{resp.StatusCode}
	}
	body, err := readAll(resp.Body, searchLimit)
	if err != nil {
		return found{}, err
	}
	var said struct {
		Results      []result `json:"results"`
		Unresponsive [][]any  `json:"unresponsive_engines"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return found{}, err
	}
	f := found{Results: []result{}, EnginesFailed: []string{}}
	for _, s := range said.Results {
		if canonical(s.URL) != "" {
			f.Results = append(f.Results, s)
		}
	}
	for _, e := range said.Unresponsive {
		f.EnginesFailed = append(f.EnginesFailed, engine(e))
	}
	return f, nil
}

// engine is a name and a reason, as SearXNG has them, in one line of what can be
// seen.
func engine(e []any) string {
	var words []string
	for _, v := range e {
		if s, ok := v.(string); ok {
			words = append(words, strings.Map(func(r rune) rune {
				if hidden(r) {
					return -1
				}
				return r
			}, s))
		}
	}
	s := strings.Join(words, ": ")
	return strings.ToValidUTF8(s[:min(len(s), 200)], "")
}

func (r *record) serveFetch(w http.ResponseWriter, req *http.Request) {
	if r.fetch == "" {
		refuse(w, http.StatusNotImplemented, "no_pages")
		return
	}
	ask, err := readAll(req.Body, askLimit)
	if err != nil {
		refuse(w, http.StatusBadRequest, "bad_request")
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), fetchTimeout)
	defer cancel()
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, r.fetch+spec.FetchPath, bytes.NewReader(ask))
	if err != nil {
		refuse(w, http.StatusBadGateway, "fetch_unavailable")
		return
	}
	out.Header.Set("Content-Type", "application/json")
	resp, err := r.client.Do(out)
	if err != nil {
		refuse(w, http.StatusBadGateway, "fetch_unavailable")
		return
	}
	defer resp.Body.Close()
	body, err := readAll(resp.Body, fetchLimit)
	if err != nil {
		refuse(w, http.StatusBadGateway, "fetch_unavailable")
		return
	}
	if resp.StatusCode == http.StatusOK {
		r.noteFetched(body)
	}
	if after := resp.Header.Get("Retry-After"); after != "" {
		w.Header().Set("Retry-After", after)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(body)
}

// noteFetched remembers a page that was there, by the addresses that led to it.
func (r *record) noteFetched(body []byte) {
	var page spec.FetchAnswer
	if json.Unmarshal(body, &page) != nil || page.Status >= http.StatusBadRequest {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetched++
	r.add(page.URL, page.FinalURL)
}

func refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": reason})
}

var errTooLarge = errors.New("too large")

func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = errTooLarge
	}
	return b, err
}
