/* Search without a server. Browsers refuse workers for pages that are opened as files. This runs the
   worker's script in a hidden frame instead, and leaves `Worker` as it is for pages from a server. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.dispatch(data);
      scope.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => load(scope, next)), Promise.resolve());
      // The worker looks for the index where the page has loaded it.
      scope.__index = window.__index;
      this.frame = frame;
      this.ready = load(scope, url);
    }

    dispatch(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })),
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
}

function load(scope, url) {
  return new Promise((resolve, reject) => {
    const script = scope.document.createElement("script");
    script.src = new URL(url, location.href);
    script.onload = resolve;
    script.onerror = reject;
    scope.document.body.appendChild(script);
  });
}
