package spec

import "net/netip"

// FetchPort is where corral-fetch listens, and FetchPath what it is asked at.
const (
	FetchPort = 8766
	FetchPath = "/v1/fetch"
)

// FetchRequest asks for one page.
type FetchRequest struct {
	URL string `json:"url"`
}

// FetchHop is one request on the way to a page. Address is unset where nothing was
// dialled.
type FetchHop struct {
	URL     string     `json:"url"`
	Address netip.Addr `json:"address,omitzero"`
}

// FetchAnswer is a page as text. All of it but URL was said by others.
type FetchAnswer struct {
	URL             string     `json:"url"`       // as asked for
	FinalURL        string     `json:"final_url"` // after redirects
	Status          int        `json:"status"`    // as the last server said
	Title           string     `json:"title"`
	ContentMarkdown string     `json:"content_markdown"`
	ContentType     string     `json:"content_type"`
	Truncated       bool       `json:"truncated"` // there was more than the limits let through
	Hops            []FetchHop `json:"hops"`
}

// FetchFailure is what comes in place of an answer.
type FetchFailure struct {
	Error  FetchReason `json:"error"`
	Detail string      `json:"detail,omitempty"`
	URL    string      `json:"url,omitempty"`
	Hops   []FetchHop  `json:"hops,omitempty"`
}

// FetchReason is why there is no page. The set is closed: FetchReasons.
type FetchReason string

const (
	FetchBadRequest      FetchReason = "bad_request"
	FetchInvalidURL      FetchReason = "invalid_url"
	FetchScheme          FetchReason = "unsupported_scheme"
	FetchBlocked         FetchReason = "blocked_destination"
	FetchForbidden       FetchReason = "forbidden"
	FetchNotFound        FetchReason = "not_found"
	FetchMethod          FetchReason = "method_not_allowed"
	FetchContentType     FetchReason = "unsupported_content_type"
	FetchGone            FetchReason = "client_gone"
	FetchInternal        FetchReason = "internal_error"
	FetchDNS             FetchReason = "dns_error"
	FetchConnect         FetchReason = "connect_error"
	FetchTLS             FetchReason = "tls_error"
	FetchBadResponse     FetchReason = "bad_response"
	FetchBadRedirect     FetchReason = "bad_redirect"
	FetchRedirects       FetchReason = "too_many_redirects"
	FetchTooLarge        FetchReason = "too_large"
	FetchContentEncoding FetchReason = "unsupported_content_encoding"
	FetchBusy            FetchReason = "busy"
	FetchShuttingDown    FetchReason = "shutting_down"
	FetchTimeout         FetchReason = "timeout"
)

// FetchFault is whose doing it is that there is no page, as the log has it.
type FetchFault string

// Whose doing it is: that of who asked, or of what may be asked now; of a server or
// of the network; of corral-fetch; of who asked and left.
const (
	FetchRefused FetchFault = "refused"
	FetchFailed  FetchFault = "failed"
	FetchOurs    FetchFault = "fault"
	FetchLeft    FetchFault = "left"
)

// FetchReasons has every reason once, with the HTTP status that it comes with, whose
// doing it is and what it means.
var FetchReasons = []struct {
	Reason FetchReason
	Status int
	Fault  FetchFault
	Means  string
}{
	{FetchBadRequest, 400, FetchRefused, "The request is not one JSON object with the URL of a page, or no HTTP."},
	{FetchInvalidURL, 400, FetchRefused, "The URL has no meaning that every program agrees on: a user name, a strange spelling of an address, a name that is none."},
	{FetchScheme, 400, FetchRefused, "It is neither http nor https."},
	{FetchBlocked, 403, FetchRefused, "The name, the port or an address of the name is not public, there or at a redirect."},
	{FetchForbidden, 403, FetchRefused, "A page in a browser asks, or `Host` names another machine than this one."},
	{FetchNotFound, 404, FetchRefused, "Nothing is served at that path."},
	{FetchMethod, 405, FetchRefused, "That path is asked in another way."},
	{FetchContentType, 415, FetchFailed, "The page is neither HTML nor plain text, JSON, XML or Markdown."},
	{FetchGone, 499, FetchLeft, "Who asked hung up, or ended its half of the connection."},
	{FetchInternal, 500, FetchOurs, "A fault of corral-fetch's own."},
	{FetchDNS, 502, FetchFailed, "The name has no address, or no name server could tell."},
	{FetchConnect, 502, FetchFailed, "No address of the name accepts a connection."},
	{FetchTLS, 502, FetchFailed, "The server's certificate does not hold, or it speaks no TLS 1.2."},
	{FetchBadResponse, 502, FetchFailed, "What came back is not HTTP, breaks off, or has headers beyond the limits."},
	{FetchBadRedirect, 502, FetchFailed, "A redirect leads nowhere, from https to http, or is of a kind that is not followed."},
	{FetchRedirects, 502, FetchFailed, "More redirects than are followed."},
	{FetchTooLarge, 502, FetchFailed, "The body has no end within the limit."},
	{FetchContentEncoding, 502, FetchFailed, "The body is compressed in another way than by one gzip, or the gzip is broken."},
	{FetchBusy, 503, FetchRefused, "Every slot is taken. Nothing was looked up. Ask again after `Retry-After` seconds."},
	{FetchShuttingDown, 503, FetchRefused, "The fetcher is being ended. Ask again after `Retry-After` seconds."},
	{FetchTimeout, 504, FetchFailed, "A server took longer than the limits allow."},
}

// Status is the HTTP status that comes with a reason; that of a fault of our own if
// it is none.
func (r FetchReason) Status() int {
	for _, row := range FetchReasons {
		if row.Reason == r {
			return row.Status
		}
	}
	return 500
}

// Fault is whose doing a reason is.
func (r FetchReason) Fault() FetchFault {
	for _, row := range FetchReasons {
		if row.Reason == r {
			return row.Fault
		}
	}
	return FetchOurs
}
