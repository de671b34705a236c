package porting

import java.util.concurrent.TimeUnit.SECONDS
import org.redisson.api.RFencedLock
import org.redisson.api.RLock

// What the guide says Redisson does and Go does not.

fun shortInLong(lock: RLock, job: () -> Unit) {
    lock.lock()
    lock.lock(2, SECONDS)
    job()
    lock.unlock()
    lock.unlock()
}

fun fencedLease(lock: RFencedLock, job: (Long) -> Unit) {
    job(lock.lockAndGetToken(5, SECONDS))
    lock.unlock()
}

fun fencedReentry(lock: RFencedLock, job: (Long) -> Unit) {
    val outer = lock.lockAndGetToken()
    val inner = lock.lockAndGetToken()
    job(inner - outer)
    lock.unlock()
    lock.unlock()
}

fun unlockTwice(lock: RLock, job: () -> Unit) {
    lock.lock()
    lock.unlock()
    job()
    lock.unlock()
}

fun unlockOnAnotherThread(lock: RLock, job: () -> Unit) {
    lock.lock()
    try {
        job()
        onAnotherThread { lock.unlock() }
    } finally {
        lock.unlock()
    }
}

fun lockOnAnotherThread(lock: RLock, job: (Boolean) -> Unit) {
    lock.lock()
    try {
        var got = true
        onAnotherThread { got = lock.tryLock() }
        job(got)
    } finally {
        lock.unlock()
    }
}

private fun onAnotherThread(f: () -> Unit) {
    var thrown: Throwable? = null
    val other = Thread { thrown = runCatching(f).exceptionOrNull() }
    other.start()
    other.join()
    thrown?.let { throw it }
}
