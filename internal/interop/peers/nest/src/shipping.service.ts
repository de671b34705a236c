import { appendFile, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { Injectable } from '@nestjs/common';

/** ShippingService does the work that only one process may do at a time. */
@Injectable()
export class ShippingService {
  private readonly folder = process.env.SECTION_FOLDER ?? '.';

  /**
   * ship counts the file "counter" one up with nothing to protect it, notes itself in the file "journal", and
   * returns the number. While it works there is a file "inside"; it throws when that was there already.
   */
  async ship(holdMs: number): Promise<number> {
    const inside = join(this.folder, 'inside');
    const counter = join(this.folder, 'counter');
    await writeFile(inside, 'nest', { flag: 'wx' });
    const shipped = Number(await readFile(counter, 'utf8')) + 1;
    if (holdMs > 0) await pause(holdMs);
    await appendFile(join(this.folder, 'journal'), 'nest\n');
    await writeFile(counter, String(shipped));
    await rm(inside);
    return shipped;
  }
}
